"""The process of one tracker: `python -m asyncrl.readers.trackers.process LABEL RUN [--once]`.

It reads metrics.jsonl until SIGTERM, which says that the run is over, sends the rest and ends. A tracker that
raises ends it, and so does one that does not come back within STALL_SECONDS: from outside of Python, as a
thread could not interrupt it, and with the lines where it hangs in the log.
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from asyncrl.observe.metrics.charts import values_of
from asyncrl.readers.trackers.tracker import (
    Note,
    Position,
    TrackedRun,
    Tracker,
    check_opened,
    find_tracker,
    position_path,
    read_position,
    write_position,
)
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.run.metrics_file import RESUMED, complete_lines
from asyncrl.system.places import METRICS, RECIPE

FAILED = 3
"""Exit code of a tracker that raised."""
STALL_SECONDS = 300.0
"""Longest call of a tracker. A hanging one costs the run nothing, and clients wait long for a server that
restarts: W&B 90 s, MLflow 120 s per attempt."""
POLL_SECONDS = 1.0
"""Between two looks at metrics.jsonl."""
NICENESS = 10
"""A busy tracker gives way to servers, trainer and verifiers."""


def main() -> None:
    """Never returns: what a tracker left running must not hold the process up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("label")
    parser.add_argument("run", type=Path)
    parser.add_argument("--once", action="store_true", help="send what is there and end")
    parser.add_argument("--stall-seconds", type=float, default=STALL_SECONDS)
    arguments = parser.parse_args()
    termination = _Termination()
    os.nice(NICENESS)
    code = 0
    try:
        track(
            arguments.run,
            arguments.label,
            is_over=(lambda: True) if arguments.once else termination.has_come,
            stall_seconds=arguments.stall_seconds,
        )
    except Exception:  # whatever a tracker raises; the run names the last line of it
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def track(run_folder: Path, label: str, *, is_over: Callable[[], bool], stall_seconds: float) -> None:
    """Sends rows until the run is over and all are sent."""
    recipe = load_recipe(run_folder / RECIPE)
    path = position_path(run_folder, label)
    path.parent.mkdir(exist_ok=True)
    position = read_position(path)
    limited = functools.partial(_limited, stall_seconds)
    with limited():
        tracker = _open(recipe, label, path.parent.absolute(), position.run_id)
    position = dataclasses.replace(position, run_id=tracker.run_id)
    write_position(path, position)
    forwarder = Forwarder(tracker, run_folder / METRICS, position, path, limited=limited)
    while not is_over():
        forwarder.forward()
    forwarder.forward()
    with limited():
        tracker.close()


def _open(recipe: Recipe, label: str, folder: Path, run_id: str | None) -> Tracker:
    settings = next(settings for settings in recipe.trackers if settings.label() == label)
    run = TrackedRun(recipe.name, folder, recipe.model_dump(mode="json"), run_id)
    tracker = find_tracker(settings)(settings, run)
    check_opened(settings, tracker)
    return tracker


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Ends the process with a traceback when what is inside takes longer, even in C code that holds the
    interpreter."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class _Termination:
    """SIGTERM as something to look for: it must not interrupt a tracker in the middle of a row."""

    def __init__(self) -> None:
        self._has_come = False
        self._wakeups, written = os.pipe()
        os.set_blocking(written, False)
        signal.signal(signal.SIGTERM, self._note)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def has_come(self) -> bool:
        """Whether it has come, or comes within POLL_SECONDS."""
        if not self._has_come:
            select.select([self._wakeups], [], [], POLL_SECONDS)
        return self._has_come

    def _note(self, *_: object) -> None:
        self._has_come = True


ALARM = "alarm"


class Forwarder:
    """Sends rows of metrics.jsonl. A row counts as sent once the tracker took it: a process that dies in
    between sends that row again."""

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


if __name__ == "__main__":
    main()
