"""A whole run as a user starts it, on real engines: tiny random weights that learn to write sevens."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil
import yaml
from fakes.base_model import write_base_model

from asyncrl.run.metrics_file import written_rows

PLUGIN = Path(__file__).parents[1] / "end_to_end" / "sevens.py"


class WholeRun:
    """One run folder; `start` may be called again after the process ended, to resume."""

    def __init__(
        self, folder: Path, *, write_model: Callable[[Path], object] = write_base_model, **sections: Any
    ) -> None:
        """`write_model` writes a model with the vocabulary of `fakes.base_model`."""
        self.folder = folder
        self.run_folder = folder / "run"
        write_model(folder / "model")
        rows = [
            json.dumps({"prompt": f"{n % 10}=", "answer": "7", "verifier": "./sevens.py:Sevens"})
            for n in range(40)
        ]
        for name in ("train.jsonl", "heldout.jsonl"):
            (folder / name).write_text("\n".join(rows))
        (folder / "sevens.py").write_text(PLUGIN.read_text())
        recipe: dict[str, Any] = {
            "name": "sevens",
            "run_folder": str(self.run_folder),
            "model": {"path": str(folder / "model"), "context_tokens": 32},
            "data": {"train": str(folder / "train.jsonl"), "heldout": str(folder / "heldout.jsonl")},
            "rollout": {"groups_per_batch": 8, "samples_per_group": 8, "max_new_tokens": 12},
            "serving": {"max_total_tokens": 8192, "max_running_requests": 64},
            "trainer": {"num_steps": 12, "learning_rate": 1e-2, "checkpoint_every_steps": 4},
            "evaluation": {"every_steps": 0, "num_tasks": 16, "samples_per_task": 2},
        }
        for name, section in sections.items():
            # None leaves a section out; what is no section is the value.
            merged = {**recipe.get(name, {}), **section} if isinstance(section, dict) else section
            recipe[name] = merged
        recipe = {name: section for name, section in recipe.items() if section is not None}
        self.recipe_path = folder / "recipe.yaml"
        self.recipe_path.write_text(yaml.safe_dump(recipe))
        self.process: subprocess.Popen[str] | None = None

    def set(self, key: str, value: Any) -> None:
        """Changes "section.key" of the recipe for the next start."""
        recipe = yaml.safe_load(self.recipe_path.read_text())
        section, _, name = key.partition(".")
        recipe[section][name] = value
        self.recipe_path.write_text(yaml.safe_dump(recipe))

    def has_heldout(self) -> bool:
        return yaml.safe_load(self.recipe_path.read_text())["data"].get("heldout") is not None

    command = "train"

    def words(self) -> list[str]:
        """Words behind the name of the command."""
        return [str(self.recipe_path)]

    def start(self) -> Self:
        with (self.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl.commands.main", self.command, *self.words()],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        return self

    def finish(self, *, seconds: float = 240.0) -> int:
        assert self.process is not None
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:.0f} s: {self.output()}") from None

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def steps(self) -> list[dict[str, Any]]:
        return [row for row in self._rows() if row["kind"] == "step"]

    def events(self) -> list[dict[str, Any]]:
        return [row for row in self._rows() if row["kind"] == "event"]

    def evaluation(self, when: str) -> dict[str, Any]:
        return next(row for row in self._rows() if row["kind"] == "eval" and row["when"] == when)

    def _rows(self) -> list[dict[str, Any]]:
        return written_rows(self.run_folder / "metrics.jsonl")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.run_folder}/journal.sqlite?mode=ro", uri=True)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def wait_for(self, condition: Callable[[], bool], what: str, *, seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process is not None and self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, f"{what} did not come: {self.output()}"
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: len(self.steps()) >= step, f"step {step}")

    def family(self) -> list[psutil.Process]:
        """The launcher and everything below it."""
        assert self.process is not None
        launcher = psutil.Process(self.process.pid)
        return [launcher, *launcher.children(recursive=True)]

    def child(self, word: str) -> psutil.Process:
        """The child of the launcher with `word` in its command line."""
        return next(iter(self.children(word)))

    def children(self, word: str) -> list[psutil.Process]:
        assert self.process is not None
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if any(word in part for part in _command_line(child))
        ]

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


def _command_line(process: psutil.Process) -> list[str]:
    """Nothing of one that ends at this moment."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
