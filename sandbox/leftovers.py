"""Leftovers of killed workers: directories of the landlock tier; control groups and what runs in them;
children of a zygote that was killed before it named them.

A directory belongs to a living worker while that holds its lock, whatever pid namespace it is in; a group by
its name."""

import contextlib
import fcntl
import os
import select
import signal
import tempfile
from pathlib import Path

from sandbox import cgroup, tree, watch

_PATIENCE_SECONDS = 0.01


def make_work_base(temporary: str, user: int) -> tuple[str, int]:
    """A worker's directory for its runs, owned by `user`, and the descriptor that holds its lock."""
    while True:
        path = tempfile.mkdtemp(prefix=f"{cgroup.PREFIX}{os.getpid()}-", dir=temporary)
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


def _end_processes(directory: Path) -> None:
    ours = os.readlink("/proc/self/ns/pid")
    for pid in (directory / "cgroup.procs").read_text().split():
        # Those of another pid namespace end with its init; or are another container's, whose worker this
        # process cannot see.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == ours:
                end(int(pid))


def sweep_groups(hierarchies: list[cgroup.Hierarchy]) -> bool:
    """Removes the groups of workers that are gone, and ends what still runs in them.

    Whether none is left: the kernel keeps a group for a moment after its last process."""
    left = False
    for hierarchy in hierarchies:
        for directory in hierarchy.home.glob(f"{cgroup.PREFIX}*"):
            if cgroup.is_alive(directory.name.removeprefix(cgroup.PREFIX)):
                continue
            with contextlib.suppress(OSError):
                _end_processes(directory)
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left = True
    return not left


def sweep(temporary: str, hierarchies: list[cgroup.Hierarchy], *, attempts: int = 1) -> None:
    """Removes what dead workers left; processes that are still ending can delay it until a later attempt."""
    for attempt in range(attempts):
        if attempt:
            select.select([], [], [], _PATIENCE_SECONDS)
        gone = sweep_groups(hierarchies)
        for path in Path(temporary).glob(f"{cgroup.PREFIX}*-*"):
            with contextlib.suppress(OSError):
                gone = _remove_unlocked(str(path)) and gone
        if gone:
            return


def end(pid: int) -> None:
    """SIGKILL for a process and, where that is a session of its own, for its whole process group.

    The kernel signals a group at once, forks in progress included: a fork bomb, which may refill while its
    processes are killed one by one, does not survive it. Every box has a session; a confined program cannot
    leave its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        # 0 is a group outside of the caller's pid namespace, and to killpg the caller's own; 1 means all.
        if group > 1 and group == os.getsid(pid) != os.getsid(0):
            os.killpg(group, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)


def end_children() -> None:
    """Ends and reaps every child of the calling process, and the orphans that come to it thereby."""
    while found := watch.children(os.getpid()):
        for pid in found:
            end(pid)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
