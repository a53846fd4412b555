"""`asyncrl track RUN [NAME ...]`: sends a run to trackers, each from where it is, and ends."""

import argparse
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.commands.pages import page_of
from asyncrl.errors import InputError
from asyncrl.readers.trackers.tracker import check_trackers, position_path, read_position, rows_left
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe
from asyncrl.run.folder import RunFolder, read_run_recipe
from asyncrl.system.places import METRICS
from sandbox.kernel import die_with_parent

HELP = (
    "Send a run to trackers: all of it, or what they lack because they failed or had no time at its "
    "end. Without names, to those of its recipe. Not while the run trains."
)
EXAMPLES = (
    "asyncrl track runs/r1_zero_arithmetic_cpu",
    "asyncrl track runs/r1_zero_arithmetic_cpu tensorboard",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="tensorboard, wandb, mlflow or trackio; the recipe then has them",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when the trackers have every row, 1 when one of them failed. Raises InputError."""
    recipe = _with_trackers(read_run_recipe(arguments.run), arguments.names, arguments.run)
    check_trackers(recipe.trackers)
    with RunFolder(arguments.run) as folder:
        folder.open(recipe)
        chosen = [s for s in recipe.trackers if s.name in arguments.names or not arguments.names]
        codes = [_send(arguments.run, settings.label()) for settings in chosen]
    if any(codes):
        print(f"Read: {page_of(__name__)}", file=sys.stderr)
    return 1 if any(codes) else 0


def _with_trackers(recipe: Recipe, names: Sequence[str], run: Path) -> Recipe:
    """The recipe with those of `names` that it does not have as trackers."""
    known = {settings.name: settings.model_dump() for settings in recipe.trackers}
    if not names and not known:
        raise InputError(f"The recipe of {run} has no trackers. Name some: asyncrl track {run} tensorboard.")
    trackers = [*known.values(), *(name for name in names if name not in known)]
    return parse_recipe({**recipe.model_dump(), "trackers": trackers}, source=str(run))


def _send(run: Path, label: str) -> int:
    """Exit code of the tracker's process."""
    path = position_path(run, label)
    num_rows = rows_left(run / METRICS, read_position(path))
    print(f"{label}: {num_rows} row(s) to send", flush=True)
    command = [sys.executable, "-P", "-m", "asyncrl.readers.trackers.process", label, str(run), "--once"]
    code = subprocess.run(
        command, check=False, preexec_fn=functools.partial(die_with_parent, os.getpid())
    ).returncode
    left = rows_left(run / METRICS, read_position(path))
    print(f"{label}: {num_rows - left} sent, {left} left" + (f" (exit code {code})" if code else ""))
    return code
