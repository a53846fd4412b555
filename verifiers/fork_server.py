"""A template process that forks workers: the loop that takes orders, and the life of what it forks.

    pool --control socket--> template --fork--> worker <--its own socket-- pool

The template is warm and has a frozen heap; it forks a worker on request (a socket comes with the request),
kills one on request, and says how it died. On request it also loads what workers need. It is
single-threaded and never sees a response, so it cannot hang on one. When the pool's process is gone, by
whatever death, the template reads the end of its socket and exits, and the kernel kills its workers. What a
worker does is its caller's.

The sandbox's zygote is another fork server and stays one. It forks untrusted programs: it runs inside their
jail, on their Python, from a few modules handed to it; its clones are the sandbox worker's children, which
alone may kill and reap them. This one forks our own code, needs every package, and is itself the parent of
its workers, so that a pool that lives in an event loop reaps no process. They share the framing, the death
with the parent, and the limits (sandbox.frames, sandbox.kernel)."""

import contextlib
import faulthandler
import gc
import importlib
import io
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence

from sandbox.frames import readable
from sandbox.kernel import die_with_parent, no_core_file

_PARENT_CHECK_SECONDS = 1.0

FORK, END, PREPARE = b"F", b"E", b"P"
ORDER = struct.Struct("<cq")
"""To the template: FORK and the worker's bytes of memory, its socket and the pipe for its last frames come
along; END and its pid; or PREPARE and the bytes of the next message, which says what to load."""
REPLY = struct.Struct("<qq")
"""The template's own pid when it is ready or has prepared something, the pid of the forked worker, or the
wait status of the ended one and the most bytes of memory that it ever had resident."""

Prepare = Callable[[bytes], None]
"""Loads what a message of PREPARE says, for all workers that are forked from now on. What fails in it fails
in the worker again, which can say so."""
Serve = Callable[[socket.socket, int], None]
"""The life of a worker, until its socket closes: (socket, bytes of memory)."""


def run(
    prepare: Prepare, serve: Serve, *, warm: Sequence[str] = (), warm_to_fork: Sequence[str] = ()
) -> None:
    """The template, `python -m MODULE CONTROL_FD POOL_PID`, until its pool is gone. Imports the modules
    `warm` before it is ready, and `warm_to_fork` before the first worker, which a pool that settles all by
    itself never asks for."""
    # A worker ends by a signal: what it printed would be lost in its buffer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # The caller may be gone before the first word reaches it; no one is left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _take_orders(prepare, serve, warm, warm_to_fork)


def _take_orders(prepare: Prepare, serve: Serve, warm: Sequence[str], warm_to_fork: Sequence[str]) -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    pool_process = int(sys.argv[2])
    # Ctrl-C in the terminal is for the pool's process, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    no_core_file()
    _warm_up(*warm)
    control.send(REPLY.pack(os.getpid(), 0))
    is_warm = not warm_to_fork
    while True:
        if readable(control.fileno(), timeout_seconds=_PARENT_CHECK_SECONDS):
            order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 2)
            if not order:
                return
            kind, number = ORDER.unpack(order)
            match kind:
                case b"F":
                    if not is_warm:
                        _warm_up(*warm_to_fork)
                        is_warm = True
                    answer = _fork(number, control, descriptors, serve), 0
                case b"P":
                    answer = _prepare(control.recv(number), prepare), 0
                case _:
                    answer = _end(number)
            control.send(REPLY.pack(*answer))
        elif os.getppid() != pool_process:
            # A child of the pool's process may hold a copy of our socket open: its end never comes.
            return


def _warm_up(*modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _prepare(payload: bytes, prepare: Prepare) -> int:
    with contextlib.suppress(Exception, SystemExit):
        prepare(payload)
    gc.collect()
    gc.freeze()
    return os.getpid()


def _fork(memory_limit_bytes: int, control: socket.socket, descriptors: list[int], serve: Serve) -> int:
    template = os.getpid()
    connection, frames_pipe = descriptors
    process = os.fork()
    if process == 0:
        control.close()
        die_with_parent(template)
        # A process that crashes has no other way to say where.
        faulthandler.enable(file=frames_pipe, all_threads=False)
        gc.disable()
        # The pool closes a worker that it no longer wants, sometimes with an answer unread.
        with contextlib.suppress(ConnectionError):
            serve(socket.socket(fileno=connection), memory_limit_bytes)
        os._exit(0)
    os.close(connection)
    os.close(frames_pipe)
    return process


def _end(process: int) -> tuple[int, int]:
    os.kill(process, signal.SIGKILL)
    # What it started, where it has a group of its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    return status, usage.ru_maxrss * 1024


def collect_garbage() -> None:
    """Between two requests of a worker, once enough has gathered: never while one is timed."""
    if gc.get_count()[0] > 200_000:
        gc.collect()
