"""metrics.jsonl: one flat JSON object per line, appended as things happen, readable while the run trains.

A row has a `kind` (step, eval, benchmark or event) and `time_seconds` (Unix time). Rows are never rewritten:
if a resumed run trains a step again, the earlier rows stay in the file and readers take the later ones. A row
is one write; whoever reads the file leaves a last line alone that has no end yet (`complete_lines`).
"""

import errno
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

DROPPED = "groups dropped"
"""The event that counts what was dropped while a step waits for its batch."""


class MetricsWriter:
    """Appends rows to one file; a row is in the page cache when the call returns. Calls raise DiskError."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_half_line(path)
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._is_open = True
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
        if self._is_open:
            self._is_open = False
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        row = {"kind": kind, "time_seconds": round(self._clock(), 3), **flat(fields)}
        try:
            self._append(json.dumps(row, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise DiskError(
                f"{self._path} could not be written: {error.strerror}. Free up disk space and run "
                f"the same command again: it resumes."
            ) from error

    def _append(self, line: bytes) -> None:
        """In one write, so that no reader meets half a row; a disk that takes only a part gets it back."""
        written = os.write(self._file, line)
        if written == len(line):
            return
        os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(slots=True)
class Metrics:
    """The rows of a metrics file without superseded ones."""

    steps: list[Row] = field(default_factory=list)
    """One per step, in order."""
    evaluations: list[Row] = field(default_factory=list)
    """One per (step, when), in order of writing."""
    benchmarks: list[Row] = field(default_factory=list)
    """One per (benchmark, when) before and after training and per step during it, in order of writing."""
    events: list[Row] = field(default_factory=list)

    def evaluation(self, when: str) -> Row | None:
        """The last evaluation "before" or "after" training, if any."""
        return next((row for row in reversed(self.evaluations) if row["when"] == when), None)

    def up_to(self, version: int) -> "Metrics":
        """The rows that a run keeps when it resumes from the checkpoint of `version`; all of its events."""

        def kept(rows: list[Row]) -> list[Row]:
            return [row for row in rows if row["step"] <= version]

        return Metrics(kept(self.steps), kept(self.evaluations), kept(self.benchmarks), self.events)


def read_metrics(path: Path) -> Metrics:
    """The rows of `path`. A missing file is an empty run; an unfinished last line is ignored.

    Raises InputError that names a line which is no row.
    """
    return MetricsFollower(path).read()


def complete_lines(content: bytes) -> list[bytes]:
    """The lines of a part of the file that have an end. The last one may be what a writer has begun, or what
    a killed one left: the next writer removes it."""
    *complete, _ = content.split(b"\n")
    return complete


def written_rows(path: Path) -> list[Row]:
    """Every row as it was written, superseded ones too; none of a missing file. Raises InputError that names
    a line which is no row."""
    try:
        lines = complete_lines(path.read_bytes())
    except FileNotFoundError:
        return []
    return [_row(path, number, line) for number, line in enumerate(lines, start=1) if line]


class MetricsFollower:
    """Reads a metrics file as it grows: each call reads what was added since the one before. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self.generation = time.time_ns()
        """Changes when the file is no longer the one that was read, and all is read again."""
        self._inode: int | None = None
        self._offset = 0
        self._num_lines = 0
        self._steps: dict[int, Row] = {}
        self._step_offsets: dict[int, int] = {}
        """Step -> where its row ends in the file, in bytes."""
        self._evaluations: dict[tuple[int, str], Row] = {}
        self._benchmarks: dict[tuple[str, str, int | None], Row] = {}
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
        """The rows behind the first `offset` bytes. Raises InputError."""
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
                benchmarks=list(self._benchmarks.values()),
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
                complete = complete_lines(file.read())
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
                step = row["step"] if row["when"] == "during" else None
                self._benchmarks[row["benchmark"], row["when"], step] = row
            case "event":
                self._events.append(row)
                if row["event"] == RESUMED:
                    last = max(self._steps, default=0)
                    row["superseded_to"] = last if last > row["version"] else None
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
    """Offset of the next request, in bytes."""
    keep_to: int | None
    """A resumed run supersedes what the reader has of later steps; None: nothing."""
    steps: list[Row]
    """New ones, in order."""
    evaluations: list[Row]
    """All of them: they are few."""
    benchmarks: list[Row]
    """All of them."""


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
        # Readers rely on these.
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
    end = sum(len(line) + 1 for line in complete_lines(content))
    if end < len(content):
        os.truncate(path, end)


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
