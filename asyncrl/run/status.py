"""status.json of a run folder: how far the run is, right now. Only the controller writes it.

A line of text that is replaced as a whole, so that a reader never sees half of it. No reader needs
the run, its journal or its host: a shared disk is enough. What has ended, or died, stays readable.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Literal, TypedDict, cast

import psutil

from asyncrl.errors import InputError
from asyncrl.system.files import write_whole
from asyncrl.system.places import STATUS

SILENT_SECONDS = 15.0
"""A status older than this comes from a run that is gone or hangs: it is written about once a second."""
SILENT_START_SECONDS = 600.0
"""As SILENT_SECONDS, while a run starts: nothing is written while nodes of a cluster are looked for."""

State = Literal["starting", "evaluating", "training", "finished", "stopped", "failed"]
ENDS = ("finished", "stopped", "failed")
"""States after which nothing follows until the run is started again."""


class Waiting(TypedDict):
    """Waits of each side, in words that begin with "for"; None while it works."""

    trainer: str | None
    rollouts: str | None


class QueueStatus(TypedDict):
    open: int
    """Groups that are generated or graded."""
    ready: int
    """Groups that may be taken."""
    taken: int
    """Groups that no checkpoint holds yet."""
    tokens_in_flight: int
    """Response tokens of open and ready groups."""


class ServerStatus(TypedDict):
    url: str
    state: str
    version: int | None
    """Version of its weights; None before it has joined."""
    requests: int
    """Requests that stream from it now."""
    tokens_per_second: float
    """This and `busy_share`: over the last ten seconds."""
    restarts: int
    retractions: int
    """How often it took a request's cache back for others."""
    busy_share: float
    """Share of the time with at least one request."""


class Status(TypedDict):
    """Contents of status.json."""

    time_seconds: float
    """Unix time of the writing."""
    state: State
    pid: int
    """Pid of the controller."""
    host: str
    """Where that process runs: elsewhere its number means nothing."""
    step: int
    """The policy version: steps done."""
    total_steps: int
    waiting: Waiting
    queue: QueueStatus
    servers: list[ServerStatus]


def this_host() -> str:
    return socket.gethostname()


def starting(*, step: int, total_steps: int) -> Status:
    """Status of a run whose parts are not there yet; it resumes at `step`."""
    return {
        "time_seconds": round(time.time(), 3),
        "state": "starting",
        "pid": os.getpid(),
        "host": this_host(),
        "step": step,
        "total_steps": total_steps,
        "waiting": {"trainer": None, "rollouts": None},
        "queue": {"open": 0, "ready": 0, "taken": 0, "tokens_in_flight": 0},
        "servers": [],
    }


def write_status(folder: Path, status: Status) -> None:
    """Replaces the file in one move. Raises OSError, and then the former file is still there."""
    write_whole(folder / STATUS, json.dumps(status) + "\n")


def read_status(folder: Path) -> Status | None:
    """None where no run has written one. Raises InputError for a file that is none."""
    try:
        found = json.loads((folder / STATUS).read_bytes())
        if not isinstance(found, dict) or not Status.__required_keys__ <= found.keys():
            raise ValueError("keys are missing")
        if not all(isinstance(found[name], int) for name in ("pid", "step", "total_steps")):
            raise ValueError("numbers are missing")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{folder / STATUS} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(
            f"{folder / STATUS} is not the status of a run ({error}). Remove it: the next start writes a new "
            f"one."
        ) from None
    return cast(Status, found)


def is_running(status: Status, *, now_seconds: float | None = None) -> bool:
    """Whether the run that wrote it still works: it has not ended, writes, and its process lives.

    `now_seconds` is Unix time; default: now.
    """
    limit = SILENT_START_SECONDS if status["state"] == "starting" else SILENT_SECONDS
    if status["state"] in ENDS or silence_of(status, now_seconds=now_seconds) > limit:
        return False
    # On another host, or in a container of its own, the number may be another process's.
    return status["host"] != this_host() or _is_alive(status["pid"])


def words_of_state(status: Status, *, now_seconds: float | None = None) -> str:
    """The state, or "no longer running" for a run that could not say how it ended."""
    if status["state"] in ENDS or is_running(status, now_seconds=now_seconds):
        return status["state"]
    return "no longer running"


def silence_of(status: Status, *, now_seconds: float | None = None) -> float:
    """Seconds since it was written; 0 where the writer's clock is ahead."""
    return max(0.0, (time.time() if now_seconds is None else now_seconds) - status["time_seconds"])


def _is_alive(pid: int) -> bool:
    """Whether there is such a process, and more of it than its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
