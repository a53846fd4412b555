"""The zygote: a warm interpreter inside the jail that clones itself once per run.

It never sees a program, its input or its output: a run's description and pipes arrive as descriptors, which
only the clone reads. So a run finds nothing of an earlier run in its memory. Single-threaded; its parent, the
worker, is also the parent of every clone (CLONE_PARENT) and reaps them."""

import gc
import json
import os
import signal
import socket
import struct
import sys
import time

from sandbox import box, keeper, kernel, warm
from sandbox.messages import ZygoteSettings

PID = struct.Struct("<i")
CLONE, COLLECT, PAUSABLE, KEEPER = b"clone", b"collect", b"pausable", b"keeper"
"""The messages: a box, a box whose files are to be handed back, a box whose init stops and continues its
processes (box.TURN), and a keeper, whose socket comes along."""
_MAX_DESCRIPTORS = 6


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
            keeper.serve(jail, *fds)
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


BOOT_ORDER = ("messages", "syscalls", "kernel", "seccomp", "landlock", "warm", "box", "keeper", "zygote")
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
