"""Hands the rows of metrics.jsonl to one tracker, in order, from where an earlier start ended.

A row counts as sent once the tracker took it: a process that dies in between sends that row again.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from asyncrl.observe.metrics.columns import values_of
from asyncrl.readers.trackers.position import Position, write_position
from asyncrl.readers.trackers.tracker import Note, Tracker
from asyncrl.run.metrics_file import RESUMED, complete_lines

ALARM = "alarm"


class Forwarder:
    def __init__(
        self,
        tracker: Tracker,
        metrics: Path,
        position: Position,
        path: Path,
        *,
        limited: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`position` is kept in the file `path`; each row is sent inside a `limited()`."""
        self._limited = limited
        self._tracker = tracker
        self._metrics = metrics
        self._path = path
        self._position = position

    def forward(self) -> int:
        """Sends what is new; how many rows that were."""
        num_rows = 0
        for line, end in self._new_lines():
            with self._limited():
                self._send(line)
            self._position = dataclasses.replace(self._position, offset_bytes=end)
            write_position(self._path, self._position)
            num_rows += 1
        return num_rows

    def _new_lines(self) -> Iterator[tuple[bytes, int]]:
        """Complete lines, each with where it ends."""
        if not self._metrics.is_file():
            return
        with self._metrics.open("rb") as file:
            start = self._position.offset_bytes
            if file.seek(0, 2) < start:
                print(f"{self._metrics} is shorter than it was: it is read from its beginning", flush=True)
                start = 0
            file.seek(start)
            for line in complete_lines(file.read()):
                start += len(line) + 1
                yield line, start

    def _send(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            kind, seconds = row["kind"], float(row["time_seconds"])
            step = int(row.get("step", self._position.step))
            values = {} if kind == "event" else values_of(row)
        except (ValueError, KeyError, TypeError) as error:
            print(f"not a row of metrics, left out: {line[:80]!r} ({error})", flush=True)
            return
        self._position = dataclasses.replace(self._position, step=step)
        if kind == "event":
            self._send_event(row, step, seconds)
        else:
            self._tracker.log(values, step=step, time_seconds=seconds)

    def _send_event(self, row: dict[str, Any], step: int, seconds: float) -> None:
        event = str(row["event"])
        if event == RESUMED:
            version = int(row["version"])
            self._position = dataclasses.replace(self._position, step=version)
            self._tracker.supersede(version)
        note = note_of(row)
        if note.is_alarm and isinstance(row.get("value"), (int, float)):
            self._tracker.log({note.event: float(row["value"])}, step=step, time_seconds=seconds)
        self._tracker.note(note, step=self._position.step, time_seconds=seconds)


def note_of(row: dict[str, Any]) -> Note:
    """The note of an event: its text, or all that its row has."""
    is_alarm = row["event"] == ALARM
    name = f"{ALARM}/{row['alarm']}" if is_alarm else str(row["event"])
    others = {
        key: value for key, value in row.items() if key not in ("kind", "time_seconds", "event", "step")
    }
    words = ", ".join(f"{key} {value}" for key, value in others.items())
    return Note(name, str(row.get("text", words)), is_alarm)
