"""The servers of a run, and what each part waits for, as RUN/status.json has it."""

import time
from typing import TypedDict

from asyncrl.readers.page.runs import Run
from asyncrl.readers.status.current_run import cause_of, state_of
from asyncrl.run.status import Status, is_running, read_status


class PageStatus(TypedDict):
    state: str
    """State that the run reports, or "no longer running"."""
    cause: str | None
    """Error that ended a run that failed."""
    is_running: bool
    age_seconds: float
    """Since it was written."""
    status: Status


class Answer(TypedDict):
    found: PageStatus | None
    """None where the run wrote none."""


def read_servers(run: Run) -> Answer:
    """Raises InputError for a file that is no status."""
    status = read_status(run.folder)
    if status is None:
        return {"found": None}
    now, state = time.time(), state_of(run.folder, status)
    return {
        "found": {
            "state": state,
            "cause": cause_of(run.folder) if state == "failed" else None,
            "is_running": is_running(status, now_seconds=now),
            "age_seconds": max(0.0, now - status["time_seconds"]),
            "status": status,
        }
    }
