"""Leftovers of killed workers: directories of the landlock tier; control groups and what runs in them.

A directory belongs to a living worker while that holds its lock, whatever pid namespace it is in; a group by
its name."""

import contextlib
import fcntl
import os
import select
import tempfile
from pathlib import Path

from sandbox import cgroup, tree

_PREFIX = "asyncrl-sandbox-"
_PATIENCE_SECONDS = 0.01


def make_work_base(temporary: str, user: int) -> tuple[str, int]:
    """A worker's directory for its runs, owned by `user`, and the descriptor that holds its lock."""
    while True:
        path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=temporary)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Another worker may have swept it away while it was not locked yet.
            if os.path.exists(path):
                break
            os.close(descriptor)
    if os.getuid() != user:
        os.chown(path, user, user)
    return path, descriptor


def _remove_unlocked(path: str) -> bool:
    """Whether the directory is gone, or none of ours to take away."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        if os.getuid() not in (0, os.fstat(descriptor).st_uid):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return tree.remove(path)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def sweep(temporary: str, hierarchies: list[cgroup.Hierarchy], *, attempts: int = 1) -> None:
    """Removes what dead workers left; processes that are still ending can delay it until a later attempt."""
    for attempt in range(attempts):
        if attempt:
            select.select([], [], [], _PATIENCE_SECONDS)
        gone = cgroup.sweep(hierarchies)
        for path in Path(temporary).glob(f"{_PREFIX}*-*"):
            with contextlib.suppress(OSError):
                gone = _remove_unlocked(str(path)) and gone
        if gone:
            return
