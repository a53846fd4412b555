"""The interface of a tracker, how far one is, and in which module each is."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from asyncrl.errors import InputError
from asyncrl.recipe import Tracker as Settings
from asyncrl.run.metrics_file import complete_lines
from asyncrl.system.files import write_whole
from asyncrl.system.places import TRACKERS
from asyncrl.system.plugins import load_object


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


def check_trackers(trackers: Sequence[Settings]) -> None:
    """Raises InputError for a tracker whose package, or whose own function, is missing."""
    for settings in trackers:
        if not settings.is_built_in():
            find_tracker(settings)
        elif find_spec(settings.name) is None:
            raise InputError(
                f"trackers has {settings.name}, but the package {settings.name} is not installed. Install it "
                f"with `make setup TRACKERS=1`, or remove {settings.name} from trackers."
            )


def find_tracker(settings: Settings) -> Open:
    """The function that opens it. Raises InputError."""
    is_built_in = settings.is_built_in()
    target = f"asyncrl.readers.trackers.{settings.name}:open_tracker" if is_built_in else settings.name
    found = load_object(target)
    if not callable(found):
        raise InputError(
            f"trackers names {target}, which is {found!r}; expected a function that opens a tracker."
        )
    return cast(Open, found)


def check_opened(settings: Settings, tracker: object) -> None:
    """Raises InputError for what an own function returned that is no tracker."""
    calls = ("log", "note", "supersede", "close")
    missing = [name for name in calls if not callable(getattr(tracker, name, None))]
    run_id = getattr(tracker, "run_id", None)
    if missing or not isinstance(run_id, str):
        wrong = f"without {', '.join(missing)}" if missing else f"with the run_id {run_id!r}"
        raise InputError(
            f"trackers {settings.name} gave {tracker!r}, {wrong}; expected an object with log, note, "
            f"supersede and close, and a text as run_id (asyncrl.readers.trackers.tracker.Tracker)."
        )
