"""The zygote: a warm interpreter inside the jail that clones itself: once per run, or once for a keeper.

It never sees a program, its input or its output: a run's description and pipes arrive as descriptors, which
only the clone reads. So a run finds nothing of an earlier run in its memory. Single-threaded; its parent, the
worker, is also the parent of every clone (CLONE_PARENT) and reaps them.

A keeper is the init of a pid namespace in which one run after another lives. A run costs one fork. Pid 1
cannot be signalled, traced or starved of limits by a program below it. After each run it kills and reaps
every process of its namespace (the kernel delivers kill(-1) to all of them at once, forks in progress
included) and throws the private directory away, so a run meets nothing of an earlier one."""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

from sandbox import box, kernel, warm
from sandbox.messages import ZygoteSettings

PID = struct.Struct("<i")
CLONE, COLLECT, PAUSABLE, KEEPER = b"clone", b"collect", b"pausable", b"keeper"
"""The messages: a box, a box whose files are to be handed back, a box whose init stops and continues its
processes (box.TURN), and a keeper, whose socket comes along."""
RUN_ORDER = struct.Struct("<q")
"""One run below a keeper: the bytes of its private directory. Descriptors as for a box come along."""
RUN_STARTED = b"S"
"""A keeper's first answer: the program runs; its pidfd comes along."""
RUN_REPORT = struct.Struct("<ciQQq")
"""A keeper's last answer: b"R", wait status, nanoseconds of wall clock, nanoseconds of CPU, largest resident
bytes. Every process of the run is gone by then."""
_MAX_DESCRIPTORS = 6
_FIRST_PID = 2


def _open_last_pid() -> int | None:
    """Written before each run, it gives every program the same pid; None where the kernel
    has no such file."""
    try:
        return os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


@dataclass
class Usage:
    """CPU time and largest resident memory of all processes that were reaped."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, found: resource.struct_rusage) -> None:
        """Counts one process, and those that it had waited for."""
        self.cpu_seconds += found.ru_utime + found.ru_stime
        self.peak_bytes = max(self.peak_bytes, found.ru_maxrss * 1024)


def _reap(program: int, usage: Usage) -> int:
    """The wait status of `program`; reaps orphans meanwhile."""
    while True:
        pid, status, found = os.wait4(-1, 0)
        usage.add(found)
        if pid == program:
            return status


def _end_all(usage: Usage) -> None:
    """No process but this one is left in the namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            usage.add(os.wait4(-1, 0)[2])


def _keep_one(jail: box.Jail, control: socket.socket, last_pid: int | None) -> bool:
    """One run, from the order to the report; false when the worker has hung up."""
    message, fds, _, _ = socket.recv_fds(control, RUN_ORDER.size, _MAX_DESCRIPTORS)
    if not message:
        return False
    (disk_bytes,) = RUN_ORDER.unpack(message)
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
    socket.send_fds(control, [RUN_STARTED], [life])
    os.close(life)
    usage = Usage()
    status = _reap(program, usage)
    wall_nanoseconds = time.monotonic_ns() - started
    _end_all(usage)
    kernel.detach("/run")
    report = (b"R", status, wall_nanoseconds, int(usage.cpu_seconds * 1e9), usage.peak_bytes)
    control.send(RUN_REPORT.pack(*report))
    return True


def _keep_runs(jail: box.Jail, control_descriptor: int) -> NoReturn:
    """Becomes the keeper and ends with it. Entered in a clone of the zygote that has its own
    pid and mount namespaces."""
    try:
        kernel.signal_when_parent_dies()
        os.close(jail.control)
        os.setsid()
        last_pid = _open_last_pid()
        box.mount_proc()
        jail.has_directory = True
        with socket.socket(fileno=control_descriptor) as control:
            while _keep_one(jail, control, last_pid):
                pass
    finally:
        os._exit(0)


def serve(settings: ZygoteSettings, control: socket.socket) -> None:
    """Clones one box per message until the worker hangs up."""
    jail = box.Jail(settings)
    flags = kernel.CLONE_PARENT
    if jail.inside:
        flags |= kernel.NEWPID | kernel.NEWNS
    box.limit_for_all_runs()
    os.environ.update(jail.program_environment({}, ""))
    # Programs must not find these modules, and need not look for them each time.
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
        del sys.modules[name]
    gc.collect()
    gc.disable()
    gc.freeze()
    control.send(b"ready")
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, _MAX_DESCRIPTORS)
        if not message:
            return
        try:
            pid = kernel.clone(flags, jail.thread_id)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0 and message == KEEPER:
            _keep_runs(jail, *fds)
        if pid == 0:
            box.enter(jail, list(fds), collects=message == COLLECT, is_pausable=message == PAUSABLE)
        for descriptor in fds:
            os.close(descriptor)
        control.send(PID.pack(pid))


def main(control_descriptor: int) -> None:
    """Entry point inside the jail: reads its settings from the control socket, then serves."""
    kernel.signal_when_parent_dies()
    os.nice(0)
    time.tzset()
    # An init must not have Python's handler; the program gets it back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    control = socket.socket(fileno=control_descriptor)
    settings: ZygoteSettings = json.loads(control.recv(1 << 20))
    keep = (kernel.CAP_SYS_ADMIN,) if settings["tier"] == "namespaces" else ()
    if keep:
        kernel.bound_capabilities(())
    kernel.set_capabilities(keep)
    kernel.no_new_privileges()
    kernel.set_dumpable(False)
    kernel.bound_thread_stacks(box.THREAD_STACK_BYTES)
    warm.preload(settings["preload"])
    warm.open_standard_streams()
    serve(settings, control)


BOOT_ORDER = ("messages", "syscalls", "kernel", "seccomp", "landlock", "warm", "box", "zygote")
"""Modules of this package that the zygote needs, each after those it imports."""

BOOTSTRAP = """
import json, os, sys, types
with open(int(sys.argv[1]), "rb") as file:
    sources = json.loads(file.read())
package = sys.modules["sandbox"] = types.ModuleType("sandbox")
package.__path__ = []
for name, source in sources:
    module = sys.modules["sandbox." + name] = types.ModuleType("sandbox." + name)
    setattr(package, name, module)
    exec(compile(source, "<sandbox." + name + ">", "exec"), module.__dict__)
sys.modules["sandbox.zygote"].main(int(sys.argv[2]))
"""
"""Run as `python -s -S -c BOOTSTRAP sources control`: the jail need not contain this package."""
