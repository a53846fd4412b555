"""metrics.jsonl: one flat JSON object per line, appended as things happen, readable while the run trains.

A row has a `kind` (step, eval, benchmark or event) and `time_seconds` (Unix time). Rows are never rewritten:
if a resumed run trains a step again, the earlier rows stay in the file and readers take the later ones.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from asyncrl.errors import DiskError, InputError
from verifiers.storable import storable

Row = dict[str, Any]

RESUMED = "resumed"
"""The event that names the policy version from which a run resumes."""


class MetricsWriter:
    """Appends rows to one file; a row is in the page cache when the call returns. Calls raise DiskError."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_half_line(path)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._clock = clock

    def step(self, fields: Mapping[str, Any]) -> None:
        """One step; `fields` holds `step`, the policy version that it made."""
        self._write("step", fields)

    def evaluation(self, fields: Mapping[str, Any]) -> None:
        """One evaluation; `fields` holds `step`, the version, and `when`: before, during or after."""
        self._write("eval", fields)

    def benchmark(self, fields: Mapping[str, Any]) -> None:
        """One benchmark; `fields` holds `step`, the version, `when`: before or after, and its name."""
        self._write("benchmark", fields)

    def event(self, event: str, **fields: Any) -> None:
        """Anything else worth a line, such as a server that left."""
        self._write("event", {"event": event, **fields})

    def resumed(self, version: int) -> None:
        """Supersedes the earlier rows of steps after `version`."""
        self.event(RESUMED, version=version)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        row = {"kind": kind, "time_seconds": round(self._clock(), 3), **flat(fields)}
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise DiskError(
                f"{self._file.name} could not be written: {error.strerror}. Make room on the disk and run "
                f"the same command again: it resumes."
            ) from error


@dataclass(slots=True)
class Metrics:
    """The rows of a metrics file without superseded ones."""

    steps: list[Row] = field(default_factory=list)
    """One per step, in order."""
    evaluations: list[Row] = field(default_factory=list)
    """One per (step, when), in order of writing."""
    benchmarks: list[Row] = field(default_factory=list)
    """One per (benchmark, when), in order of writing."""
    events: list[Row] = field(default_factory=list)

    def evaluation(self, when: str) -> Row | None:
        """The last evaluation "before" or "after" training, if any."""
        return next((row for row in reversed(self.evaluations) if row["when"] == when), None)


def read_metrics(path: Path) -> Metrics:
    """The rows of `path`. A missing file is an empty run; an unfinished last line is ignored.

    Raises InputError that names a line which is no row.
    """
    steps: dict[int, Row] = {}
    evaluations: dict[tuple[int, str], Row] = {}
    benchmarks: dict[tuple[str, str], Row] = {}
    events: list[Row] = []
    for row in _rows(path):
        # `_row` has checked the keys used here.
        match row["kind"]:
            case "step":
                steps[row["step"]] = row
            case "eval":
                key = (row["step"], row["when"])
                # Popped first, so that a repeated evaluation takes its new place in the order.
                evaluations.pop(key, None)
                evaluations[key] = row
            case "benchmark":
                benchmarks[row["benchmark"], row["when"]] = row
            case "event":
                events.append(row)
                if row["event"] == RESUMED:
                    version = row["version"]
                    steps = {step: kept for step, kept in steps.items() if step <= version}
                    evaluations = {key: kept for key, kept in evaluations.items() if key[0] <= version}
                    benchmarks = {key: kept for key, kept in benchmarks.items() if kept["step"] <= version}
    return Metrics(
        [steps[step] for step in sorted(steps)], list(evaluations.values()), list(benchmarks.values()), events
    )


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    lines = enumerate(complete.split(b"\n"), start=1)
    return [_row(path, number, line) for number, line in lines if line]


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
        # What readers rely on.
        match row["kind"]:
            case "step":
                is_row = type(row["step"]) in (int, float)
            case "eval":
                is_row = type(row["step"]) in (int, float) and isinstance(row["when"], str)
            case "benchmark":
                names = (row["when"], row["benchmark"])
                is_row = type(row["step"]) in (int, float) and all(isinstance(name, str) for name in names)
            case _:
                is_row = row["event"] != RESUMED or type(row["version"]) is int
    except (ValueError, KeyError, TypeError):
        is_row = False
    if not is_row:
        raise InputError(
            f"{path}:{number} is not a row of metrics: {line[:60].decode(errors='replace')!r}. Remove "
            f"the line, or move the file away: the report reads it, training does not."
        )
    return dict(row)


def _cut_half_line(path: Path) -> None:
    """Removes the row that a killed process was writing: what follows the last newline."""
    if not path.exists():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)


def flat(fields: Mapping[str, Any]) -> Row:
    """{"outcomes": {"wrong": 3}} becomes {"outcomes_wrong": 3}, a number that JSON cannot hold becomes null,
    and text is made storable."""
    row: Row = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            row.update(flat({f"{name}_{key}": inner for key, inner in value.items()}))
        elif isinstance(value, float) and not math.isfinite(value):
            row[name] = None
        elif isinstance(value, str):
            row[name] = storable(value)
        else:
            row[name] = value
    return row
