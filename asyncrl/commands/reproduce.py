"""`asyncrl reproduce RUN STEP`: trains a step again from the journal; the numbers must be the same.

`asyncrl reproduce REPORT.json`: trains a whole run again; its results must be the same within noise.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from asyncrl.commands.arguments import is_override
from asyncrl.commands.train import explained, train
from asyncrl.errors import InputError
from asyncrl.launch.base_model import fetch_model, fetch_model_to_train
from asyncrl.launch.placement import GpuMap, place
from asyncrl.launch.prepare import prepare_and_fetch
from asyncrl.model.layout import rank_environment
from asyncrl.observe.terminal.stderr import warn_on_stderr
from asyncrl.readers.report import reproduce
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.tables import Table
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, shown
from asyncrl.run.folder import RECIPE, first_difference, read_run_recipe
from asyncrl.run.reproduction import plan_reproduction
from asyncrl.system.kinds import as_written
from asyncrl.system.ports import free_ports

HELP = (
    "Train step STEP of a run again: from the nearest checkpoint before it (or the base model), on the "
    "batches that the journal recorded. Prints every number next to the recorded one; exit code 1 when one "
    "differs. Steps count from 1: step n made version n. With the report.json of `asyncrl report`: train "
    "the whole run again, with its recipe and seeds, in a new run folder, and compare both; exit code 1 "
    "when a difference is clear. The same command again resumes it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s RUN STEP\n       %(prog)s RUN/report.json [section.key=value ...] [--check]"
    parser.add_argument("run", type=Path, help="a run folder, or the report.json of a run")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="STEP",
        help="of a run: the step, counted from 1, as in metrics.jsonl; of a report: keys to change, such as "
        "model.path=PATH",
    )
    parser.add_argument(
        "--check", action="store_true", help="of a report: do everything but train, and say what differs"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when identical (of a report: the same within the interval), 1 when not or when a process failed, 2
    for what cannot be reproduced."""
    path: Path = arguments.run
    if path.is_file() or path.suffix == ".json":
        warn_on_stderr()
        return explained(lambda: _train_again(path, arguments.words, is_check=arguments.check))
    try:
        step = _step(arguments.words, is_check=arguments.check)
        written = read_run_recipe(path)
        recipe = plan_reproduction(path, step).recipe
        _refuse_changes(path, written, recipe)
        fetch_model(recipe)
        gpus = place(recipe, ("trainer",))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    codes = _run_ranks(path, step, recipe, gpus)
    return next((code if code > 0 else 1 for code in codes if code), 0)


def _step(words: Sequence[str], *, is_check: bool) -> int:
    if len(words) == 1 and words[0].isdecimal() and not is_check:
        return int(words[0])
    raise InputError(
        f"expected a run folder and one step (such as 12), or the report.json of a run, found the words "
        f"{[*words, *(['--check'] if is_check else [])]}."
    )


def _train_again(path: Path, overrides: Sequence[str], *, is_check: bool) -> int:
    """The run of a report, in a new folder; 1 when its result clearly differs."""
    recorded = reproduce.read_report(path)
    unknown = next((word for word in overrides if not is_override(word)), None)
    if unknown is not None:
        raise InputError(f"{unknown!r} is not section.key=value; only a run folder has steps.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / RECIPE
        reproduce.write_recipe(recorded, path, file)
        recipe = load_recipe(file, overrides)
        reproduce.find_missing(recorded, recipe)
        gpus = place(recipe)
        recipe = prepare_and_fetch(recipe, file, overrides, fetch_model_to_train)
    reproduce.check_sources(recorded, recipe)
    _say_what_differs(recorded, recipe, gpus)
    if is_check:
        print("checked: everything is there to train it again. Nothing was trained.")
        return 0
    if (code := train(recipe, gpus)) != 0:
        return code
    reproduced = collect(recipe.folder())
    table, is_same = reproduce.side_by_side(recorded, reproduced)
    _print_table(table)
    print(reproduce.NOT_IDENTICAL)
    print(reproduce.NOTHING_TO_COMPARE if is_same is None else reproduce.VERDICT[is_same])
    return 1 if is_same is False else 0


def _say_what_differs(recorded: RunReport, recipe: Recipe, gpus: GpuMap) -> None:
    if not recorded.run.is_finished:
        print(f"the report is of a run that was not finished, at step {recorded.run.steps}")
    names = {gpu.device: gpu.name for _, held in gpus.processes() for gpu in held}
    found = reproduce.environment_remarks(recorded, list(names.values()))
    print("environment: as recorded" if not found else "environment, what differs:")
    for remark in found:
        print(f"  {remark}")
    print(f"model, data and code: as recorded. Seed {recipe.seed}. Run folder: {shown(recipe.folder())}")


def _print_table(table: Table) -> None:
    console = Console(highlight=False)
    drawn = RichTable(title=table.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(table.header):
        drawn.add_column(Text(column), justify="right" if index else "left", header_style="dim")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)
    console.print(Text(table.note, style="dim"))


def _refuse_changes(run: Path, written: Recipe, trained: Recipe) -> None:
    changed = first_difference(trained, written)
    if changed is not None:
        key, old, new = changed
        raise InputError(
            f"{run}/recipe.yaml says {key} = {as_written(new)}, but the run was trained with "
            f"{as_written(old)}. Put the old value back to reproduce its steps."
        )


def _run_ranks(run: Path, step: int, recipe: Recipe, gpus: GpuMap) -> list[int]:
    command = [sys.executable, "-P", "-m", "asyncrl.trainer.reproduce", "--run-folder", str(run)]
    command += ["--step", str(step)]
    port = free_ports(1)[0]
    # Sessions of their own: Ctrl-C ends them by their parent alone, without a traceback from each.
    processes = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **rank_environment(recipe.trainer, rank, port=port),
                **gpus.environment_of(f"trainer {rank}"),
            },
            start_new_session=True,
        )
        for rank in range(recipe.trainer.num_processes)
    ]
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
