"""metrics.jsonl: one flat JSON object per line, appended as things happen, readable while the run trains.

A row has a `kind` (step, eval, benchmark or event) and `time_seconds` (Unix time). Rows are never rewritten:
if a resumed run trains a step again, the earlier rows stay in the file and readers take the later ones.
"""

import json
import math
import os
import sys
import threading
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
        self.event(RESUMED, version=version, step=version)

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
    return MetricsFollower(path).read()


class MetricsFollower:
    """Reads a metrics file as it grows: each call reads what was added since the one before. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self.generation = time.time_ns()
        """Another number when the file is no longer the one that was read, and all is read again."""
        self._inode: int | None = None
        self._offset = 0
        self._num_lines = 0
        self._steps: dict[int, Row] = {}
        self._step_offsets: dict[int, int] = {}
        """Step -> where its row ends in the file, in bytes."""
        self._evaluations: dict[tuple[int, str], Row] = {}
        self._benchmarks: dict[tuple[str, str], Row] = {}
        self._events: list[Row] = []
        self._resumed: list[tuple[int, int]] = []
        """(where its row ends, version) of each resumption."""

    def read(self) -> Metrics:
        """All rows, without superseded ones. Raises InputError that names a line which is no row."""
        with self._lock:
            self._follow()
            return Metrics(
                [self._steps[step] for step in sorted(self._steps)],
                list(self._evaluations.values()),
                list(self._benchmarks.values()),
                list(self._events),
            )

    def read_after(self, offset: int) -> "MetricsAddition":
        """What a reader lacks who has read the first `offset` bytes. Raises InputError."""
        with self._lock:
            self._follow()
            versions = [version for at, version in self._resumed if at > offset]
            added = sorted(step for step, at in self._step_offsets.items() if at > offset)
            return MetricsAddition(
                generation=self.generation,
                offset=self._offset,
                keep_to=min(versions, default=None),
                steps=[self._steps[step] for step in added],
                evaluations=list(self._evaluations.values()),
            )

    def _follow(self) -> None:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                # A file that was replaced, or cut where a killed process had left half a row.
                if self._inode not in (None, found.st_ino) or found.st_size < self._offset:
                    self._start_over()
                self._inode = found.st_ino
                if found.st_size == self._offset:
                    return
                file.seek(self._offset)
                *complete, _ = file.read().split(b"\n")
        except FileNotFoundError:
            return
        for line in complete:
            row = _row(self._path, self._num_lines + 1, line) if line else None
            self._offset += len(line) + 1
            self._num_lines += 1
            if row is not None:
                self._add(row)

    def _add(self, row: Row) -> None:
        # `_row` has checked the keys used here.
        match row["kind"]:
            case "step":
                self._steps[row["step"]] = row
                self._step_offsets[row["step"]] = self._offset
            case "eval":
                key = (row["step"], row["when"])
                # Popped first, so that a repeated evaluation takes its new place in the order.
                self._evaluations.pop(key, None)
                self._evaluations[key] = row
            case "benchmark":
                self._benchmarks[row["benchmark"], row["when"]] = row
            case "event":
                self._events.append(row)
                if row["event"] == RESUMED:
                    self._resume(row["version"])

    def _resume(self, version: int) -> None:
        """Forgets the rows of steps after `version`."""
        self._resumed.append((self._offset, version))
        self._steps = {step: kept for step, kept in self._steps.items() if step <= version}
        self._step_offsets = {step: at for step, at in self._step_offsets.items() if step <= version}
        self._evaluations = {key: kept for key, kept in self._evaluations.items() if key[0] <= version}
        self._benchmarks = {key: kept for key, kept in self._benchmarks.items() if kept["step"] <= version}


@dataclass(frozen=True, slots=True)
class MetricsAddition:
    """The rows that a reader lacks."""

    generation: int
    """A reader of another generation has to start over, from byte 0."""
    offset: int
    """What to ask with next, in bytes."""
    keep_to: int | None
    """A resumed run supersedes what the reader has of later steps; None: nothing."""
    steps: list[Row]
    """New ones, in order."""
    evaluations: list[Row]
    """All of them: they are few."""


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
    # A row has a hundred names, equal in all rows.
    return {sys.intern(name): value for name, value in row.items()}


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
