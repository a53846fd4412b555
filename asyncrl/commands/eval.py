"""`asyncrl eval RECIPE [--checkpoint FOLDER]`: greedy accuracy, avg@k and pass@k on the held-out tasks."""

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
from pathlib import Path

from asyncrl.assemble import make_evaluator
from asyncrl.commands.arguments import add_recipe
from asyncrl.errors import AsyncrlError, InputError
from asyncrl.evaluation.run import Greedy, Sampled
from asyncrl.inputs import Inputs
from asyncrl.launch.base_model import fetch_model
from asyncrl.launch.engine_only import serve_folder
from asyncrl.launch.local import first_cause
from asyncrl.launch.preflight import read_inputs
from asyncrl.launch.prepare import prepare_and_fetch
from asyncrl.model.source import model_folder, model_title
from asyncrl.observe.stderr import warn_on_stderr
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import absolute, load_recipe
from asyncrl.rollout.grade import Grader

HELP = "Evaluate a recipe's model, or a checkpoint of it, on its held-out tasks."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face folder; default: the recipe's model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 when evaluated, 1 when a server failed, 2 for bad input."""
    warn_on_stderr()
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
    greedy, sampled = result
    model = model_title(recipe.model)
    print(json.dumps({**greedy, **sampled}) if arguments.json else _text(model, greedy, sampled))
    return 0


def _result(arguments: argparse.Namespace) -> tuple[Recipe, tuple[Greedy, Sampled]]:
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    if arguments.checkpoint is not None:
        there = {"path": absolute(str(arguments.checkpoint), Path.cwd()), "revision": None}
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=there)})
    recipe = prepare_and_fetch(recipe, arguments.recipe, arguments.overrides, fetch_model)
    if recipe.data.heldout is None:
        raise InputError(f"{arguments.recipe} has no data.heldout: there is nothing to evaluate on.")
    inputs, _ = read_inputs(recipe)
    return recipe, asyncio.run(_evaluate(inputs))


async def _evaluate(inputs: Inputs) -> tuple[Greedy, Sampled]:
    recipe = inputs.recipe
    grader = Grader(recipe.verifying, inputs.verifiers, max_fault_retries=recipe.rollout.max_fault_retries)
    async with grader, serve_folder(recipe, model_folder(recipe.model)) as served:
        evaluator = make_evaluator(inputs, secrets.token_hex(4), served.fleet, served.waits, grader)
        greedy = await evaluator.greedy(inputs.heldout_tasks)
        sampled = await evaluator.sampled(
            inputs.heldout_tasks, num_samples=recipe.evaluation.samples_per_task
        )
    return greedy, sampled


def _text(model: str, greedy: Greedy, sampled: Sampled) -> str:
    def line(name: str, value: float, low: float, high: float) -> str:
        return f"  {name:<10} {value:.3f}  [{low:.3f}, {high:.3f}]"

    k = sampled["k"]
    return "\n".join(
        [
            f"{model}: {greedy['num_tasks']} held-out tasks, 95% intervals",
            line("greedy", greedy["greedy_accuracy"], greedy["greedy_low"], greedy["greedy_high"]),
            line(f"avg@{k}", sampled["avg_at_k"], sampled["avg_low"], sampled["avg_high"]),
            line(f"pass@{k}", sampled["pass_at_k"], sampled["pass_low"], sampled["pass_high"]),
            f"  length     {greedy['response_tokens_mean']:.1f} tokens (greedy)",
        ]
    )
