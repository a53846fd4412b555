"""The interface of a tracker, and how far a tracker is."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from asyncrl.recipe import Tracker as Settings
from asyncrl.run.metrics_file import complete_lines
from asyncrl.system.files import write_whole
from asyncrl.system.places import TRACKERS


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run, as `open_tracker` is told of it."""

    name: str
    """The recipe's `name`."""
    folder: Path
    """RUN/trackers, where a tracker may keep files."""
    recipe: Mapping[str, Any]
    """Resolved: every key, defaults included."""
    run_id: str | None
    """Id that the tracker gave the run in an earlier start, which it continues; None in the first one."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event of the run, such as a warning or an alarm."""

    event: str
    """Name of the event, as in metrics.jsonl; an alarm is alarm/NAME."""
    text: str
    is_alarm: bool


class Tracker(Protocol):
    """Its calls may take any time and raise anything: both end only its own process."""

    @property
    def run_id(self) -> str:
        """Id that the tracker gave the run."""
        ...

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        """Values of one optimizer step, by name, and when they were known (Unix time)."""
        ...

    def note(self, note: Note, *, step: int, time_seconds: float) -> None: ...

    def supersede(self, step: int) -> None:
        """The run resumes from `step`: later steps are trained, and logged, again."""
        ...

    def close(self) -> None:
        """Everything that was logged is where it belongs when this returns."""
        ...


Open = Callable[[Settings, TrackedRun], Tracker]
"""Type of the function `open_tracker` in a tracker's module."""


@dataclass(frozen=True, slots=True)
class Position:
    run_id: str | None = None
    offset_bytes: int = 0
    """Position in metrics.jsonl: rows before it were handed to the tracker."""
    step: int = 0
    """Step of the last row that had one."""


def position_path(run_folder: Path, label: str) -> Path:
    return run_folder / TRACKERS / f"{label}.json"


def read_position(path: Path) -> Position:
    """The position of an earlier start; the beginning where there is none that can be read."""
    try:
        return Position(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return Position()


def write_position(path: Path, position: Position) -> None:
    write_whole(path, json.dumps(dataclasses.asdict(position)))


def rows_left(metrics: Path, position: Position) -> int:
    """How many rows the tracker does not have."""
    if not metrics.is_file():
        return 0
    with metrics.open("rb") as file:
        file.seek(position.offset_bytes)
        return len(complete_lines(file.read()))
