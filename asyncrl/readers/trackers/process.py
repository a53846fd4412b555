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
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from asyncrl.readers.trackers.catalog import check_opened, find_tracker
from asyncrl.readers.trackers.forwarder import Forwarder
from asyncrl.readers.trackers.position import position_path, read_position, write_position
from asyncrl.readers.trackers.tracker import TrackedRun, Tracker
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.system.run_files import METRICS, RECIPE

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


if __name__ == "__main__":
    main()
