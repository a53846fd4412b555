"""Trainer processes as the launcher starts them, with whatever arguments a test wants."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Recipe, Trainer
from asyncrl.recipe.file import dump_recipe


def start_trainer(run_folder: Path, queue_url: str, recipe: Recipe | None = None) -> list[subprocess.Popen]:
    """One process per rank; their output goes to RUN/trainer-<rank>.log. Writes the recipe where given."""
    run_folder.mkdir(exist_ok=True)
    if recipe is not None:
        (run_folder / "recipe.yaml").write_text(dump_recipe(recipe))
    section, port = Trainer() if recipe is None else recipe.trainer, _free_port()
    command = [sys.executable, "-m", "asyncrl.trainer.main"]
    command += ["--run-folder", str(run_folder), "--queue-url", queue_url]
    processes = []
    for rank in range(section.num_processes):
        environment = os.environ | rank_environment(section, rank, port=port)
        with (run_folder / f"trainer-{rank}.log").open("a") as output:
            processes.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            )
    return processes


def finish_trainer(processes: list[subprocess.Popen], *, timeout_seconds: float = 120) -> list[int]:
    """Exit codes; kills what is still there at the end."""
    try:
        return [process.wait(timeout_seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_log(run_folder: Path) -> str:
    return (run_folder / "trainer-0.log").read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
