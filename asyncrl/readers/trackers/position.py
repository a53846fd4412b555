"""How far a tracker is: what it calls the run, and which rows of metrics.jsonl it has."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from asyncrl.run.metrics_file import complete_lines
from asyncrl.system.run_files import TRACKERS
from asyncrl.system.whole_file import write_whole


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
