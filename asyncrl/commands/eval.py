"""`asyncrl eval RECIPE [--checkpoint FOLDER]`: greedy accuracy, avg@k and pass@k on the held-out tasks."""

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import secrets
import sys
from pathlib import Path

from asyncrl.commands.arguments import add_recipe
from asyncrl.controller import Inputs
from asyncrl.errors import AsyncrlError, InputError
from asyncrl.evaluation.run import Evaluator
from asyncrl.launch.engine_only import serve_folder
from asyncrl.launch.local import first_cause
from asyncrl.launch.preflight import read_inputs
from asyncrl.launch.prepare import prepare
from asyncrl.observe.live import printable
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import absolute, load_recipe, shown
from asyncrl.records import SamplingParams
from asyncrl.rollout.grade import Grader

HELP = "Evaluate a recipe's model, or a checkpoint of it, on its held-out tasks."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face folder; default: the recipe's model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 when evaluated, 1 when a server failed, 2 for bad input."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        # With --json standard output holds the object alone.
        with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            recipe, result = _result(arguments)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        if not isinstance(cause, AsyncrlError):
            raise
        print(f"{type(cause).__name__}: {cause}", file=sys.stderr)
        return 1
    except AsyncrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if arguments.json else _text(str(shown(Path(recipe.model.path))), result))
    return 0


def _result(arguments: argparse.Namespace) -> tuple[Recipe, dict[str, float]]:
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    prepare(recipe, arguments.recipe, arguments.overrides)
    if arguments.checkpoint is not None:
        model = recipe.model.model_copy(update={"path": absolute(str(arguments.checkpoint), Path.cwd())})
        recipe = recipe.model_copy(update={"model": model})
    if recipe.data.heldout is None:
        raise InputError(f"{arguments.recipe} has no data.heldout: there is nothing to evaluate on.")
    inputs, _ = read_inputs(recipe)
    return recipe, asyncio.run(_evaluate(inputs))


async def _evaluate(inputs: Inputs) -> dict[str, float]:
    recipe, section = inputs.recipe, inputs.recipe.evaluation
    grader = Grader(
        recipe.verifying,
        inputs.verifiers,
        max_fault_retries=recipe.rollout.max_fault_retries,
        note=lambda text: print(printable(text), file=sys.stderr),
    )
    async with grader, serve_folder(recipe, Path(recipe.model.path)) as served:
        evaluator = Evaluator(
            fleet=served.fleet,
            waits=served.waits,
            grader=grader,
            codec=inputs.codec,
            sampling=SamplingParams(
                section.temperature, recipe.rollout.max_new_tokens, inputs.codec.stop_token_ids
            ),
            context_tokens=inputs.context_tokens,
            silence_seconds=recipe.serving.request_timeout_seconds,
            run_id=secrets.token_hex(4),
            counter=itertools.count(),
        )
        greedy = await evaluator.greedy(inputs.heldout_tasks)
        sampled = await evaluator.sampled(inputs.heldout_tasks, num_samples=section.samples_per_task)
    return {**greedy, **sampled}


def _text(model: str, result: dict[str, float]) -> str:
    def line(name: str, value: str, low: str, high: str) -> str:
        return f"  {name:<10} {result[value]:.3f}  [{result[low]:.3f}, {result[high]:.3f}]"

    k = int(result["k"])
    return "\n".join(
        [
            f"{model}: {int(result['num_tasks'])} held-out tasks, 95% intervals",
            line("greedy", "greedy_accuracy", "greedy_low", "greedy_high"),
            line(f"avg@{k}", "avg_at_k", "avg_low", "avg_high"),
            line(f"pass@{k}", "pass_at_k", "pass_low", "pass_high"),
            f"  length     {result['response_tokens_mean']:.1f} tokens (greedy)",
        ]
    )
