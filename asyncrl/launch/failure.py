"""Cause and state that a failed start leaves in the run folder, also before anything trains."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from asyncrl.errors import AsyncrlError
from asyncrl.observe.terminal.postmortem import POST_MORTEM, RecentEvents, write_post_mortem
from asyncrl.run.status import ENDS, read_status, write_status

log = logging.getLogger(__name__)


@contextlib.contextmanager
def failure_recorded(run_folder: Path) -> Iterator[None]:
    """Where the block raises, status.json says "failed" and the post-mortem why, as far as neither has been
    written by then. Ctrl-C is no failure."""
    before = _written_at(run_folder)
    with RecentEvents() as events:
        try:
            yield
        except Exception as error:
            if _written_at(run_folder) == before:
                record_cause(run_folder, first_cause(error), {}, events)
            _record_state(run_folder)
            raise


def record_cause(
    run_folder: Path, cause: BaseException, state: Mapping[str, str], events: RecentEvents
) -> None:
    """Writes the post-mortem. Must not hide the cause: it may be that the disk is full."""
    try:
        written = write_post_mortem(run_folder, cause, state=state, events=events)
    except OSError as error:
        log.error("the post-mortem could not be written: %s", error)
    else:
        log.error("what each part waited for, and the last lines of every process: %s", written)


def first_cause(error: BaseException) -> BaseException:
    """The error of ours (or the first one) inside the groups that task groups raise."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, AsyncrlError)), causes[0])


def _record_state(run_folder: Path) -> None:
    with contextlib.suppress(OSError):
        status = read_status(run_folder)
        if status is not None and status["state"] not in ENDS:
            write_status(run_folder, {**status, "state": "failed", "time_seconds": round(time.time(), 3)})


def _written_at(run_folder: Path) -> int | None:
    try:
        return (run_folder / POST_MORTEM).stat().st_mtime_ns
    except OSError:
        return None
