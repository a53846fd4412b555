"""`asyncrl reproduce RUN STEP`: trains a step again from the journal; the numbers must be the same."""

import argparse
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.launch.placement import place
from asyncrl.launch.prepare import fetch_model, run_ranks
from asyncrl.run.folder import first_difference, read_run_recipe
from asyncrl.run.reproduction import plan_reproduction
from asyncrl.system.words import as_written

HELP = (
    "Train step STEP of a run again: from the nearest checkpoint before it (or the base model), on the "
    "batches that the journal recorded. Prints every number next to the recorded one; exit code 1 when one "
    "differs. Steps count from 1: step n made version n."
)
EXAMPLES = (
    "asyncrl reproduce runs/r1_zero_arithmetic_cpu 1",
    "asyncrl reproduce runs/r1_zero_arithmetic_cpu 40",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("step", type=_step, metavar="STEP", help="counted from 1, as in metrics.jsonl")


def run(arguments: argparse.Namespace) -> int:
    """0 when identical, 1 when not or when a process failed. Raises InputError."""
    path: Path = arguments.run
    written = read_run_recipe(path)
    recipe = plan_reproduction(path, arguments.step).recipe
    if (changed := first_difference(recipe, written)) is not None:
        key, old, new = changed
        raise InputError(
            f"{path}/recipe.yaml says {key} = {as_written(new)}, but the run was trained with "
            f"{as_written(old)}. Put the old value back to reproduce its steps."
        )
    fetch_model(recipe)
    gpus = place(recipe, ("trainer",))
    words = ["--run-folder", str(path), "--step", str(arguments.step)]
    return run_ranks("asyncrl.trainer.reproduce", words, recipe, gpus)


def _step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no step, such as 12")
    return int(text)
