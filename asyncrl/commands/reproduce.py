"""`asyncrl reproduce RUN STEP`: trains a step again from the journal; the numbers must be the same."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.launch.base_model import fetch_model
from asyncrl.launch.placement import GpuMap, place
from asyncrl.launch.rank_names import rank_name
from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Recipe
from asyncrl.run.folder import first_difference, read_run_recipe
from asyncrl.run.reproduction import plan_reproduction
from asyncrl.system.kinds import as_written
from asyncrl.system.ports import free_ports

HELP = (
    "Train step STEP of a run again: from the nearest checkpoint before it (or the base model), on the "
    "batches that the journal recorded. Prints every number next to the recorded one; exit code 1 when one "
    "differs. Steps count from 1: step n made version n."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("step", type=_step, metavar="STEP", help="counted from 1, as in metrics.jsonl")


def run(arguments: argparse.Namespace) -> int:
    """0 when identical, 1 when not or when a process failed. Raises InputError for what cannot be
    reproduced."""
    path: Path = arguments.run
    written = read_run_recipe(path)
    recipe = plan_reproduction(path, arguments.step).recipe
    _refuse_changes(path, written, recipe)
    fetch_model(recipe)
    gpus = place(recipe, ("trainer",))
    codes = _run_ranks(path, arguments.step, recipe, gpus)
    return next((code if code > 0 else 1 for code in codes if code), 0)


def _step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no step, such as 12")
    return int(text)


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
                **gpus.environment_of(rank_name(rank)),
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
