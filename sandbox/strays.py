"""Ends processes whose owner is gone or never heard of them: children of a zygote that was killed before it
named them, and what runs in the control group of a dead worker."""

import contextlib
import os
import signal

from sandbox import watch


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
