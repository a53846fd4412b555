"""The keeper: the init of a pid namespace in which one run after another lives. A run costs one fork.

Pid 1 cannot be signalled, traced or starved of limits by a program below it. After each run it kills and
reaps every process of its namespace (the kernel delivers kill(-1) to all of them at once, forks in progress
included) and throws the private directory away, so a run meets nothing of an earlier one. Like the zygote,
of which it is a clone, it never reads a program, its input or its output."""

import contextlib
import os
import resource
import signal
import socket
import struct
import time
from typing import NoReturn

from sandbox import box, kernel

ORDER = struct.Struct("<q")
"""One run: the bytes of its private directory. Descriptors as for a box come along."""
STARTED = b"S"
"""First answer: the program runs; its pidfd comes along."""
REPORT = struct.Struct("<ciQQq")
"""Last answer: b"R", wait status, nanoseconds of wall clock, nanoseconds of CPU, largest resident bytes.
Every process of the run is gone by then."""
_MAX_DESCRIPTORS = 6
_FIRST_PID = 2


def _open_last_pid() -> int | None:
    """Written before each run, it gives every program the same pid; None where the kernel
    has no such file."""
    try:
        return os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


class _Usage:
    """CPU time and largest memory of all processes that were reaped."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        self.peak_bytes = 0

    def add(self, found: resource.struct_rusage) -> None:
        self.nanoseconds += int((found.ru_utime + found.ru_stime) * 1e9)
        self.peak_bytes = max(self.peak_bytes, found.ru_maxrss * 1024)


def _reap(program: int, usage: _Usage) -> int:
    """The wait status of `program`; reaps orphans meanwhile."""
    while True:
        pid, status, found = os.wait4(-1, 0)
        usage.add(found)
        if pid == program:
            return status


def _end_all(usage: _Usage) -> None:
    """No process but this one is left in the namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            usage.add(os.wait4(-1, 0)[2])


def _keep(jail: box.Jail, control: socket.socket, last_pid: int | None) -> bool:
    """One run, from the order to the report; false when the worker has hung up."""
    message, fds, _, _ = socket.recv_fds(control, ORDER.size, _MAX_DESCRIPTORS)
    if not message:
        return False
    (disk_bytes,) = ORDER.unpack(message)
    box.mount_private(disk_bytes)
    if last_pid is not None:
        os.pwrite(last_pid, b"%d" % (_FIRST_PID - 1), 0)
    started = time.monotonic_ns()
    program = jail.fork_program()
    if program == 0:
        # A session of its own: the kernel shares out the processor by sessions, and a program may weaken its
        # own, which must not be the next one's too.
        os.setsid()
        box.become_program(jail, list(fds), os.getpid())
    for descriptor in fds:
        os.close(descriptor)
    life = os.pidfd_open(program)
    socket.send_fds(control, [STARTED], [life])
    os.close(life)
    usage = _Usage()
    status = _reap(program, usage)
    wall_nanoseconds = time.monotonic_ns() - started
    _end_all(usage)
    kernel.detach("/run")
    report = (b"R", status, wall_nanoseconds, usage.nanoseconds, usage.peak_bytes)
    control.send(REPORT.pack(*report))
    return True


def serve(jail: box.Jail, control_descriptor: int) -> NoReturn:
    """Becomes the keeper and ends with it. Entered in a clone of the zygote that has its own
    pid and mount namespaces."""
    try:
        kernel.die_with_parent()
        os.close(jail.control)
        os.setsid()
        last_pid = _open_last_pid()
        box.mount_proc()
        jail.has_directory = True
        with socket.socket(fileno=control_descriptor) as control:
            while _keep(jail, control, last_pid):
                pass
    finally:
        os._exit(0)
