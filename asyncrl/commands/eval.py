"""`asyncrl eval RECIPE [BENCHMARK ...]`: a model and its checkpoints side by side on benchmarks."""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from asyncrl.commands.arguments import is_model, is_override
from asyncrl.commands.parser import number, whole
from asyncrl.commands.train import explained
from asyncrl.controller.inputs import Inputs, hidden_files
from asyncrl.data.benchmarks import CATALOG, GATED, Benchmark
from asyncrl.errors import InputError
from asyncrl.evaluation.asked_sets import benchmarks_of, named_benchmark
from asyncrl.evaluation.evaluation_set import EvaluationSet
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.model_results import Comparison, shown_answers
from asyncrl.evaluation.result import tallies_of
from asyncrl.journal.kept_answers import ANSWERS, AnswerStore
from asyncrl.launch.engine_only import ServedModel, asking, serve_folder, serve_nothing
from asyncrl.launch.evaluated_models import (
    BASE,
    LAST,
    EvaluatedModel,
    answers_file,
    find_models,
    keep_answers,
    usable_versions,
)
from asyncrl.launch.preflight import read_evaluation_inputs
from asyncrl.launch.prepare import fetch_model, prepare, prepare_and_fetch
from asyncrl.launch.servers import check_ports
from asyncrl.launch.stopping import INTERRUPTED
from asyncrl.observe.terminal.model_differences import comparison_table, curve_plot, curve_tables
from asyncrl.observe.terminal.stage import stage
from asyncrl.observe.terminal.table import Table, print_table, printable, table_console, warn_on_stderr
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, model_recipe
from asyncrl.system.places import RECIPE

HELP = (
    "Evaluate a recipe's model and its checkpoints side by side, on benchmarks by name or on files of rows. "
    "Without any: on data.heldout and the benchmarks of the recipe."
)
EXAMPLES = (
    "asyncrl eval --list",
    "asyncrl eval recipes/r1_zero_arithmetic_cpu.yaml",
    "asyncrl eval Qwen/Qwen3-0.6B gsm8k math500 --num-tasks 100",
    "asyncrl eval runs/r1_zero_arithmetic_cpu --at base,best,last",
)
HELDOUT = "heldout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s RECIPE|RUN|MODEL [BENCHMARK ...] [section.key=value ...] [options]\n       %(prog)s --list"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE",
        help="a recipe, a run's folder or a model, then benchmarks: names, files of rows, name:file for a "
        "benchmark whose rows are in that file, or heldout; and keys to change, as serving.num_servers=2",
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks that have names")
    parser.add_argument(
        "--at",
        type=lambda text: text.split(","),
        help="models: base, best, last or steps, such as base,best,40; default: base, and last of a run",
    )
    parser.add_argument(
        "--checkpoint", type=Path, action="append", default=[], help="another Hugging Face folder to evaluate"
    )
    parser.add_argument("--k", type=whole(1), help="samples per task; 1: only the most likely answer")
    parser.add_argument(
        "--temperature", type=number(above=0), help="temperature where a task has several samples"
    )
    parser.add_argument(
        "--top-p", type=number(above=0), help="samples come from the likeliest tokens of this share"
    )
    parser.add_argument("--top-k", type=whole(1), help="samples come from this many of the likeliest tokens")
    parser.add_argument(
        "--min-p", type=number(above=0), help="least probability of a token, relative to the likeliest"
    )
    parser.add_argument(
        "--repetition-penalty", type=number(above=0), help="above 1: fewer repetitions, in greedy answers too"
    )
    parser.add_argument("--max-tokens", type=whole(1), help="maximum tokens of a response")
    parser.add_argument(
        "--num-tasks", type=whole(1), help="the first tasks of each benchmark, at most this many"
    )
    parser.add_argument(
        "--regrade", action="store_true", help="ask for verdicts again, also on kept answers that have one"
    )
    parser.add_argument("--fresh", action="store_true", help="ask for answers again that are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="a file for the same JSON, written after each benchmark")


def run(arguments: argparse.Namespace) -> int:
    """0 when evaluated, 1 when a server failed, 130 after Ctrl-C. Raises InputError."""
    if arguments.list:
        _print_catalog()
        return 0
    warn_on_stderr()
    started: list[Comparison] = []
    code = explained(lambda: _evaluated(arguments, started), has_page=not arguments.json)
    if code == INTERRUPTED:
        print(f"Stopped. {started[0].progress() if started else 'Nothing was asked yet.'}", file=sys.stderr)
    elif code and started:
        print(started[0].progress(), file=sys.stderr)
    return code


def _evaluated(arguments: argparse.Namespace, started: list[Comparison]) -> int:
    # With --json standard output holds the object alone.
    with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        comparison = _compare(arguments, started)
    if arguments.json:
        print(json.dumps(comparison.as_json()))
    else:
        _print(comparison)
    return 0


def _compare(arguments: argparse.Namespace, started: list[Comparison]) -> Comparison:
    """The finished comparison, which `started` holds from its beginning."""
    place, names, overrides = _words(arguments)
    is_run = (place / RECIPE).is_file()
    path = place / RECIPE if is_run else place
    recipe = model_recipe(str(place), overrides) if is_model(place) else load_recipe(path, overrides)
    has_last = is_run and bool(usable_versions(recipe.folder()))
    default = [] if arguments.checkpoint else [BASE, LAST] if has_last else [BASE]
    at = arguments.at or default
    if BASE in at:
        recipe = prepare_and_fetch(recipe, path, overrides, fetch_model)
    else:
        prepare(recipe, path, overrides)
    models = find_models(recipe, at, arguments.checkpoint)
    # Prompts are rendered and read with the tokenizer that all of them have.
    there = {"path": str(models[0].folder), "revision": None}
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=there)})
    check_ports(recipe)
    inputs = _inputs(recipe, names, arguments)
    comparison = Comparison([model.label for model in models], inputs.eval_sets, file=arguments.out)
    started.append(comparison)
    with AnswerStore(answers_file(recipe)) as store:
        asyncio.run(_evaluate(inputs, models, comparison, store, arguments))
    return comparison


def _words(arguments: argparse.Namespace) -> tuple[Path, list[str], list[str]]:
    """Recipe or run, benchmarks, overrides; those of the options among them."""
    overrides = [word for word in arguments.words if is_override(word)]
    others = [word for word in arguments.words if word not in overrides]
    if not others:
        raise InputError(
            "asyncrl eval needs a recipe, the folder of a run or a model, then benchmarks: "
            "asyncrl eval RECIPE gsm8k."
        )
    for key, value in (
        ("evaluation.samples_per_task", arguments.k),
        ("evaluation.temperature", arguments.temperature),
        ("evaluation.top_p", arguments.top_p),
        ("evaluation.top_k", arguments.top_k),
        ("evaluation.min_p", arguments.min_p),
        ("evaluation.repetition_penalty", arguments.repetition_penalty),
        ("evaluation.max_new_tokens", arguments.max_tokens),
        ("evaluation.num_tasks", arguments.num_tasks),
        ("evaluation.benchmark_tasks", arguments.num_tasks),
    ):
        if value is not None:
            overrides.append(f"{key}={value}")
    return Path(others[0]), others[1:], overrides


def _inputs(recipe: Recipe, names: list[str], arguments: argparse.Namespace) -> Inputs:
    if names:
        benchmarks = [named_benchmark(recipe, name) for name in names if name != HELDOUT]
    else:
        benchmarks = benchmarks_of(recipe)
    has_heldout = HELDOUT in names if names else recipe.data.heldout is not None
    if recipe.data.heldout is None and (has_heldout or not benchmarks):
        raise InputError(
            "The recipe has no data.heldout. Name benchmarks, such as gsm8k: `asyncrl eval --list` has all."
        )
    return read_evaluation_inputs(
        recipe, [_as_asked(benchmark, arguments) for benchmark in benchmarks], has_heldout=has_heldout
    )


def _as_asked(benchmark: Benchmark, arguments: argparse.Namespace) -> Benchmark:
    asked = {
        "num_samples": arguments.k,
        "temperature": arguments.temperature,
        "max_new_tokens": arguments.max_tokens,
        # One sample per task means the most likely answer here.
        "is_sampled": False if arguments.k == 1 else None,
    }
    if benchmark.settings is not None:
        names = ("num_tasks", "top_p", "top_k", "min_p", "repetition_penalty")
        own = {name: getattr(arguments, name) for name in names}
        update = {name: value for name, value in own.items() if value is not None}
        benchmark = dataclasses.replace(benchmark, settings=benchmark.settings.model_copy(update=update))
    return dataclasses.replace(
        benchmark, **{name: value for name, value in asked.items() if value is not None}
    )


async def _evaluate(
    inputs: Inputs,
    models: list[EvaluatedModel],
    comparison: Comparison,
    store: AnswerStore,
    arguments: argparse.Namespace,
) -> None:
    recipe = inputs.recipe
    folder = recipe.folder()
    hidden = hidden_files(recipe, folder if folder.is_dir() else None, inputs.eval_sets)
    async with asking(inputs, hidden) as make_evaluator:
        for model in models:
            evaluator = make_evaluator()
            # Weights take as long as the disk needs.
            keep = partial(keep_answers, recipe, model, inputs.verifiers, store)
            evaluator.kept = await asyncio.to_thread(keep, regrades=arguments.regrade)
            serving = _serve_for(inputs, model, evaluator, store, is_fresh=arguments.fresh)
            async with serving as served:
                evaluator = evaluator.on(served.fleet, served.waits, served.opponents)
                for eval_set in inputs.eval_sets:
                    await _give(eval_set, evaluator, model.label, comparison, is_fresh=arguments.fresh)


def _serve_for(
    inputs: Inputs, model: EvaluatedModel, evaluator: Evaluator, store: AnswerStore, *, is_fresh: bool
) -> AbstractAsyncContextManager[ServedModel]:
    """Servers of the model, with a seed of their own; none where every answer is kept."""
    slots = [slot for eval_set in inputs.eval_sets for slot in eval_set.slots(evaluator)]
    kept = evaluator.kept
    if kept is not None and is_fresh:
        kept.forget(slots)
    if kept is not None and not kept.num_missing(slots):
        return serve_nothing()
    # Servers of an earlier seed would draw the samples again that are kept.
    return serve_folder(inputs.recipe, model.folder, seed=store.new_seed(inputs.recipe.seed))


async def _give(
    eval_set: EvaluationSet, evaluator: Evaluator, label: str, comparison: Comparison, *, is_fresh: bool
) -> None:
    comparison.begin(label, eval_set)
    with stage(f"{eval_set.name} on {label}", eval_set.num_responses) as progress:

        def graded(num_responses: int) -> None:
            comparison.graded(num_responses)
            progress.advance(num_responses)

        result = await eval_set.measure(eval_set.evaluator(evaluator, graded))
        tallies = []
        if result.sampled_responses:
            tallies = await tallies_of(eval_set.tasks, result.sampled_responses, evaluator.grader)
    num_kept = 0 if evaluator.kept is None else evaluator.kept.take_num_found()
    row = comparison.end(label, eval_set, result, tallies, num_kept=num_kept)
    if evaluator.kept is not None:
        evaluator.kept.store.keep_result(
            *(
                eval_set.name,
                eval_set.settings_digest(eval_set.slots(evaluator)),
                evaluator.kept.model,
                label,
            ),
            {
                **row,
                "tasks": [task.task_id for task in eval_set.tasks],
                ANSWERS: shown_answers(eval_set.tasks, result),
            },
            num_samples=eval_set.num_sampled,
            is_fresh=is_fresh or evaluator.kept.regrades,
        )


def _print(comparison: Comparison) -> None:
    console = table_console()
    for eval_set in comparison.eval_sets:
        console.print()
        print_table(comparison_table(comparison.models, comparison.rows(eval_set)), console)
        _print_curves(eval_set, comparison, console)
    console.print()
    words = "95% intervals over tasks, Wilson's"
    if len(comparison.models) > 1:
        words += (
            f". Differences to {comparison.models[0]} are paired over tasks, in points. Every model was "
            f"asked the same prompts"
        )
    console.print(f"{words}.", markup=False)


def _print_curves(eval_set: EvaluationSet, comparison: Comparison, console: Console) -> None:
    compared = comparison.compared(eval_set)
    lines = [] if compared is None else curve_plot(compared)
    if compared is None or not lines:
        return
    for table in curve_tables(eval_set.name, compared):
        console.print()
        print_table(table, console)
    console.print()
    for line in [*lines, "", *compared["sentences"]]:
        console.print(Text(printable(line)), soft_wrap=True)


def _print_catalog() -> None:
    header = ("benchmark", "rows", "k", "tokens", "verifier", "asked as", "source")
    rows = [
        (
            benchmark.name,
            f"{benchmark.num_rows:,}",
            str(benchmark.num_samples),
            f"{benchmark.max_new_tokens:,}",
            benchmark.verifier or "",
            benchmark.instruction_name,
            _source(benchmark),
        )
        for benchmark in (*CATALOG.values(), *GATED.values())
    ]
    print_table(Table("", header, rows), table_console())


def _source(benchmark: Benchmark) -> str:
    source = benchmark.source
    if benchmark.name in GATED:
        return f"{source.path} {source.config}, gated: name {benchmark.name}:FILE"
    place = f"{source.path} {source.config or ''}".strip()
    return f"{place} {source.split} at {(source.revision or 'main')[:8]}"
