"""Trainer processes as the launcher starts them, with whatever arguments a test wants."""

import os
import subprocess
import sys
from pathlib import Path

from fakes.template import Forked, Template

from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Recipe, Trainer
from asyncrl.recipe.file import dump_recipe
from asyncrl.system.network import free_ports

MODULE = "asyncrl.trainer.main"
TEMPLATE: Template | None = None
"""Where trainers are forked instead of started; the fixture `forked_trainers` sets it."""


def start_trainer(
    run_folder: Path, queue_url: str, recipe: Recipe | None = None
) -> list[subprocess.Popen | Forked]:
    """One process per rank; their output goes to RUN/trainer-<rank>.log. Writes the recipe where given."""
    run_folder.mkdir(exist_ok=True)
    if recipe is not None:
        (run_folder / "recipe.yaml").write_text(dump_recipe(recipe))
    section, port = Trainer() if recipe is None else recipe.trainer, free_ports(1)[0]
    arguments = ["--run-folder", str(run_folder), "--queue-url", queue_url]
    return [
        _start_rank(
            arguments,
            os.environ | rank_environment(section, rank, port=port),
            run_folder / f"trainer-{rank}.log",
        )
        for rank in range(section.num_processes)
    ]


def _start_rank(arguments: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen | Forked:
    with log.open("ab") as output:
        if TEMPLATE is not None:
            return TEMPLATE.start(MODULE, arguments, environment=environment, output=output)
        command = [sys.executable, "-m", MODULE, *arguments]
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def finish_trainer(processes: list[subprocess.Popen | Forked], *, timeout_seconds: float = 120) -> list[int]:
    """Exit codes; kills what is still there at the end."""
    try:
        return [process.wait(timeout_seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_log(run_folder: Path) -> str:
    return (run_folder / "trainer-0.log").read_text()
