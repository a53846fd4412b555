"""`asyncrl difficulty RECIPE|RUN`: how often the model solves each row of data.train."""

import argparse
import asyncio
import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

import yaml

from asyncrl.commands.arguments import add_recipe, check_has_tasks
from asyncrl.commands.parser import whole
from asyncrl.commands.train import explained
from asyncrl.controller.inputs import Inputs, hidden_files
from asyncrl.data.column_copies import copy_name, is_file, source_of_copy, write_copy
from asyncrl.data.digests import digest_of
from asyncrl.data.rows import labels_of
from asyncrl.errors import InputError
from asyncrl.evaluation.difficulty import MeasuredFile, chance_of_signal, histogram_lines, measure
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import read_pass_rates
from asyncrl.journal.starts import changed_data
from asyncrl.launch.engine_only import asking, serve_folder
from asyncrl.launch.preflight import read_training_inputs
from asyncrl.launch.prepare import fetch_model, prepare_and_fetch
from asyncrl.launch.servers import check_ports
from asyncrl.model.folder import model_digest
from asyncrl.model.source import model_folder
from asyncrl.observe.terminal.stage import stage
from asyncrl.observe.terminal.table import warn_on_stderr
from asyncrl.recipe import Recipe, Source
from asyncrl.recipe.file import load_recipe, shown
from asyncrl.run.folder import data_digests
from asyncrl.system.paths import is_run_folder, nearest_run
from asyncrl.system.places import JOURNAL, RECIPE
from asyncrl.system.words import as_percent

HELP = (
    "Measure how often the recipe's model solves each row of data.train, or read it from the journal of a "
    "run: prints the histogram and writes copies of the sources with the column pass_rate, for data.filter: "
    "next to a data file, else (folders, hub ids, gyms) into the current folder. A measurement that is "
    "broken off continues when the same command runs again."
)
EXAMPLES = (
    "asyncrl difficulty recipes/r1_zero_arithmetic_cpu.yaml -n 4 --num-rows 100",
    "asyncrl difficulty runs/r1_zero_arithmetic_cpu --no-copy",
)
COLUMN = "pass_rate"
SAMPLES = 16
ROUNDS_AT_ONCE = 4
"""Rows that are asked together fill the servers this many times: fewer would leave them idle at the end of
each part, more would be lost with it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, help="a recipe to measure, or the folder of a run to read")
    parser.usage = "%(prog)s RECIPE|RUN [section.key=value ...] [options]"
    parser.add_argument("-n", type=whole(1), help=f"samples per row of a recipe; default: {SAMPLES}")
    parser.add_argument("--num-rows", type=whole(1), help="the first rows of a recipe, at most this many")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the copies; default: next to each data file, else the current folder",
    )
    parser.add_argument("--no-copy", action="store_true", help="print the histogram alone")


def run(arguments: argparse.Namespace) -> int:
    """0 when measured, 1 when a server failed, 130 after Ctrl-C. Raises InputError."""
    warn_on_stderr()
    return explained(lambda: _answered(arguments))


def _answered(arguments: argparse.Namespace) -> int:
    if arguments.out is not None and not arguments.out.is_dir():
        raise InputError(f"--out is {arguments.out}, which is not a folder. Make it, or name another one.")
    is_run = is_run_folder(arguments.recipe)
    if not arguments.recipe.exists() and (meant := nearest_run(arguments.recipe)):
        raise InputError(f"There is no recipe and no run at {arguments.recipe}.{meant}")
    recipe, rates = _read(arguments) if is_run else _measure(arguments)
    if not rates:
        raise InputError(f"{arguments.recipe}: no row has a verdict yet.")
    _print(recipe, list(rates.values()))
    if not arguments.no_copy:
        _write_copies(recipe, rates, arguments.out)
    return 0


def _read(arguments: argparse.Namespace) -> tuple[Recipe, dict[str, float]]:
    """Task id -> pass rate over all visits of a run."""
    if arguments.n is not None or arguments.num_rows is not None:
        raise InputError(
            f"-n and --num-rows are for a recipe; a run is read as it is. To measure its base model, name "
            f"{shown(arguments.recipe / RECIPE)}."
        )
    recipe = load_recipe(arguments.recipe / RECIPE, arguments.overrides)
    journal = JournalReader(arguments.recipe / JOURNAL)
    if not arguments.no_copy and "data.train" in changed_data(journal, data_digests(recipe)):
        raise InputError(
            f"data.train has changed since {arguments.recipe} began: its rows may stand elsewhere. Put the "
            f"file back, or give --no-copy for the histogram alone."
        )
    return recipe, read_pass_rates(journal)


def _measure(arguments: argparse.Namespace) -> tuple[Recipe, dict[str, float]]:
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    check_has_tasks(recipe, "asyncrl difficulty")
    recipe = prepare_and_fetch(recipe, arguments.recipe, arguments.overrides, fetch_model)
    check_ports(recipe)
    inputs = read_training_inputs(recipe)
    for example in inputs.verifiers.examples.values():
        inputs.verifiers.check_alone(example.verifier, "A sample of asyncrl difficulty")
    num_samples = arguments.n or SAMPLES
    folder = _folder_of(recipe.data.train_sources()[0], arguments.out)
    unfinished = folder / f"{recipe.name}.{COLUMN}.unfinished.jsonl"
    file = MeasuredFile.open(unfinished, _settings(recipe, inputs, num_samples))
    num_rows = min(len(inputs.train_tasks), arguments.num_rows or len(inputs.train_tasks))
    asyncio.run(_sample(inputs, file, num_samples=num_samples, num_rows=num_rows))
    if num_rows == len(inputs.train_tasks):
        file.path.unlink()
    found = {task_id: row.pass_rate for task_id, row in file.found.items()}
    return recipe, {task_id: rate for task_id, rate in found.items() if rate is not None}


def _settings(recipe: Recipe, inputs: Inputs, num_samples: int) -> dict[str, object]:
    """All that decides about a row's samples and verdicts."""
    return {
        "model": model_digest(model_folder(recipe.model)),
        "data": digest_of(recipe.data.train_sources(), "data.train"),
        "prompt": recipe.prompt and recipe.prompt.model_dump(),
        "rollout": recipe.rollout.model_dump(),
        "turns": recipe.turns.model_dump(),
        "agent": recipe.agent.model_dump(),
        "verifying": recipe.verifying.model_dump(),
        "context_tokens": inputs.context_tokens,
        "num_samples": num_samples,
    }


async def _sample(inputs: Inputs, file: MeasuredFile, *, num_samples: int, num_rows: int) -> None:
    recipe = inputs.recipe
    num_servers = recipe.serving.num_started() or len(recipe.serving.servers)
    places = recipe.serving.max_running_requests * num_servers
    tasks = itertools.islice(inputs.train_tasks, num_rows)
    async with (
        asking(inputs, hidden_files(recipe, None)) as make_evaluator,
        serve_folder(recipe, model_folder(recipe.model)) as served,
    ):
        evaluator = make_evaluator().on(served.fleet, served.waits, served.opponents)
        evaluator = dataclasses.replace(evaluator, sampling=inputs.rollout_sampling())
        with stage(f"{num_samples} samples of each of {num_rows:,} rows", num_rows) as progress:
            progress.advance(len(file.found))
            await measure(
                tasks,
                evaluator,
                file,
                num_samples=num_samples,
                rows_at_once=max(1, ROUNDS_AT_ONCE * places // num_samples),
                told=progress.advance,
            )


def _print(recipe: Recipe, rates: list[float]) -> None:
    size = recipe.rollout.samples_per_group
    mean = sum(rates) / len(rates)
    lines = [
        f"pass rates of {len(rates):,} rows",
        *histogram_lines(rates),
        f"Mean {as_percent(mean, 1)}. A group of {size} has two rewards with chance "
        f"{as_percent(chance_of_signal(rates, size), 1)} on average, as far as these rates say.",
    ]
    print("\n".join(lines))


def _write_copies(recipe: Recipe, rates: Mapping[str, float], out: Path | None) -> None:
    sources = recipe.data.train_sources()
    copies = []
    for source, label in zip(sources, labels_of(sources, "train"), strict=True):
        target = _folder_of(source, out) / copy_name(source, label, COLUMN)
        values = {
            int(task_id.rpartition(":")[2]): rate
            for task_id, rate in rates.items()
            if task_id.rpartition(":")[0] == label
        }
        copied = write_copy(source, target, COLUMN, values, "data.train")
        copies.append(source_of_copy(source, target.absolute()))
        print(f"{shown(target)} has the column {COLUMN}, null for rows without one.")
        if copied.num_unmade:
            print(f"It lacks {copied.num_unmade:,} tasks that the gym could not make.")
        if copied.nulled:
            print(f"JSON cannot hold all values of {', '.join(copied.nulled)}: those are null in it.")
    named = copies[0] if len(copies) == 1 else copies
    written = yaml.safe_dump(named, default_flow_style=True, sort_keys=False, width=10**6).strip()
    print(f'To use it, set data.train to {written} and data.filter to "{COLUMN} in [0.05, 0.95]".')


def _folder_of(source: Source, out: Path | None) -> Path:
    """Where its copy is written: next to a file; of what is none, the current folder."""
    return out or (Path(source.path or "").parent if is_file(source) else Path.cwd())
