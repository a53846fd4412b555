"""Trackers of a user's own, as recipes name them: one that keeps what it is told, and ones that fail."""

import ctypes
import json
import os
import signal
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl.readers.trackers.tracker import Note, TrackedRun
from asyncrl.recipe import Tracker as Settings

FILE = Path(__file__)


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed: make setup TRACKERS=1"
    )


def write_recipe(run: Path, *trackers: Any) -> None:
    """The resolved recipe of a run folder, with these trackers."""
    run.mkdir(parents=True, exist_ok=True)
    recipe = {"name": "sums", "model": {"path": "model"}, "data": {"train": "none.jsonl"}}
    recipe |= {"evaluation": {"every_steps": 0}, "trackers": list(trackers)}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def own(function: str, **options: Any) -> dict[str, Any]:
    """An entry of `trackers` for one of the functions below."""
    return {"name": f"{FILE}:{function}", "options": options}


class Keeper:
    """Appends what it is told to a file, a line each."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self.run_id = run_id

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        self._keep(log=dict(values), step=step, time=time_seconds)

    def note(self, note: Note, *, step: int, time_seconds: float) -> None:
        self._keep(note=[note.event, note.text, note.is_alarm], step=step)

    def supersede(self, step: int) -> None:
        self._keep(supersede=step)

    def close(self) -> None:
        self._keep(close=True)

    def _keep(self, **told: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(told) + "\n")


def kept(run: Path) -> list[dict[str, Any]]:
    """What a Keeper of this run was told."""
    path = run / "trackers" / "kept.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(settings: Settings, run: TrackedRun) -> Keeper:
    number = 0 if run.run_id is None else int(run.run_id)
    keeper = Keeper(run.folder / "kept.jsonl", str(number + 1))
    keeper._keep(opened=run.name, seed=run.recipe["seed"], run_id=run.run_id)
    return keeper


class Failing(Keeper):
    """Fails at the step `at`, in the way `how`."""

    def __init__(self, path: Path, *, at: int, how: str) -> None:
        super().__init__(path, "1")
        self._at, self._how = at, how

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        if step >= self._at:
            fail(self._how)
        super().log(values, step=step, time_seconds=time_seconds)


def fail(how: str) -> None:
    match how:
        case "sleeps":
            time.sleep(1e6)
        case "hangs in C":
            # Unlike CDLL it keeps the interpreter's lock, so no other thread of Python runs meanwhile.
            ctypes.PyDLL(None).sleep(1000000)
        case "raises":
            raise RuntimeError("the tracker's server said no")
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "is slow":
            time.sleep(0.3)


def failing(settings: Settings, run: TrackedRun) -> Failing:
    if "opening" in settings.options:
        fail(settings.options["opening"])
    return Failing(run.folder / "kept.jsonl", **settings.options)


def opens_wrongly(settings: Settings, run: TrackedRun) -> Keeper | None:
    """Returns no tracker: None, or one that a later start cannot name."""
    if settings.options["gives"] == "None":
        return None
    keeper = Keeper(run.folder / "kept.jsonl", "1")
    keeper.run_id = 7  # type: ignore[assignment]
    return keeper
