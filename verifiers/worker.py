"""The processes behind VerifierPool: a template that is warm, and workers that it forks.

    pool --control socket--> template --fork--> worker <--its own socket-- pool

The template has the math verifier imported, sympy too once it was idle for a moment, and a frozen heap; it
forks a worker on request (a socket comes with the request), kills one on request, and says how it died. On
request it also loads what a verifier asks for (`PreparedVerifier`). It is single-threaded and never sees a
response, so it cannot hang on one. When the pool's process is gone, by whatever death, the template reads the
end of its socket and exits, and the kernel kills its workers. A worker serves one verification at a time over
its socket, until that closes.

The sandbox's zygote is another fork server and stays one. It forks untrusted programs: it runs inside their
jail, on their Python, from a few modules handed to it; its clones are the sandbox worker's children, which
alone may kill and reap them. This one forks our own code, needs every package, and is itself the parent of
its workers, so that a pool that lives in an event loop reaps no process. They share the framing, the death
with the parent, and the limits (sandbox.frames, sandbox.process)."""

import contextlib
import functools
import gc
import importlib
import io
import os
import pickle
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from sandbox import frames
from sandbox.polling import readable
from sandbox.process import die_with_parent, limit_memory, no_core_file
from verifiers.registry import build_verifier
from verifiers.storable import fault_of, storable_verdict
from verifiers.verdict import Verdict, fault, over_limit, wrong
from verifiers.verifier import LimitedVerifier, PreparedVerifier, Verifier, VerifierUnavailable

_WARM = ("verifiers.math.verifier", "mpmath", "verifiers.exact", "verifiers.numeric", "verifiers.regex")
# Imports sympy, which few verifications need: when the first workers are forked and nothing else is asked.
_WARM_WHEN_IDLE = "verifiers.math.algebra"
_IDLE_SECONDS = 0.1
_PARENT_CHECK_SECONDS = 1.0
UNLIMITED_MEMORY = 1 << 46

FORK, END, PREPARE = b"F", b"E", b"P"
ORDER = struct.Struct("<cq")
"""To the template: FORK and the worker's bytes of memory, its socket comes along; END and its pid; or PREPARE
and the bytes of the next message, a pickled (specification, what to prepare)."""
REPLY = struct.Struct("<q")
"""The template's own pid when it is ready or has prepared something, the pid of the forked worker, the wait
status of the ended one."""


def main() -> None:
    """The template: `python -m verifiers.worker CONTROL_FD POOL_PID`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    pool_process = int(sys.argv[2])
    # Ctrl-C in the terminal is for the pool's process, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    no_core_file()
    _warm_up(*_WARM)
    control.send(REPLY.pack(os.getpid()))
    is_warm = False
    loaded: dict[bytes, Verifier] = {}
    while True:
        if readable(control.fileno(), timeout_seconds=_PARENT_CHECK_SECONDS if is_warm else _IDLE_SECONDS):
            order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 1)
            if not order:
                return
            kind, number = ORDER.unpack(order)
            match kind:
                case b"F":
                    answer = _fork(number, control, descriptors[0], loaded)
                case b"P":
                    answer = _prepare(control.recv(number), loaded)
                case _:
                    answer = _end(number)
            control.send(REPLY.pack(answer))
        elif not is_warm:
            _warm_up(_WARM_WHEN_IDLE)
            is_warm = True
        elif os.getppid() != pool_process:
            # A child of the pool's process may hold a copy of our socket open: its end never comes.
            return


def _warm_up(*modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _prepare(payload: bytes, loaded: dict[bytes, Verifier]) -> int:
    """Loads what a verifier needs, for all workers that are forked from now on."""
    # What fails here fails in the worker again, which has a verdict to say it with.
    with contextlib.suppress(Exception):
        specification, what = pickle.loads(payload)
        verifier = _load(specification, loaded)
        if isinstance(verifier, PreparedVerifier):
            verifier.prepare(what)
    gc.collect()
    gc.freeze()
    return os.getpid()


def _load(specification: bytes, loaded: dict[bytes, Verifier]) -> Verifier:
    if specification not in loaded:
        name, options, folder = pickle.loads(specification)
        loaded[specification] = build_verifier(name, options, folder=Path(folder) if folder else None)
    return loaded[specification]


def _fork(
    memory_limit_bytes: int, control: socket.socket, descriptor: int, loaded: dict[bytes, Verifier]
) -> int:
    template = os.getpid()
    process = os.fork()
    if process == 0:
        control.close()
        die_with_parent(template)
        _serve(socket.socket(fileno=descriptor), memory_limit_bytes, loaded)
        os._exit(0)
    os.close(descriptor)
    return process


def _end(process: int) -> int:
    os.kill(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1]


def _serve(connection: socket.socket, memory_limit_bytes: int, loaded: dict[bytes, Verifier]) -> None:
    """The life of a worker: one request, one reply, until the socket closes."""
    gc.disable()
    read_exactly = functools.partial(frames.read_exactly, connection)
    # The pool closes a worker that it no longer wants, sometimes with a verdict unread.
    with contextlib.suppress(ConnectionError):
        while True:
            _, (specification, response, reference) = frames.receive(read_exactly)
            text = response.decode("utf-8", "surrogatepass")
            verdict = _answer(specification, text, reference, loaded, memory_limit_bytes)
            connection.sendall(frames.pack(_fields(verdict)))
            if gc.get_count()[0] > 200_000:
                gc.collect()


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}


def _answer(
    specification: bytes,
    response: str,
    reference: bytes,
    loaded: dict[bytes, Verifier],
    memory_limit_bytes: int,
) -> Verdict:
    """The verdict on one request. What the response causes is WRONG; what the verifier causes is FAULT.

    `specification` and `reference` are pickled."""
    started = time.perf_counter()
    try:
        if specification not in loaded:
            limit_memory(UNLIMITED_MEMORY)
        verifier = _load(specification, loaded)
        own_limits = isinstance(verifier, LimitedVerifier) and verifier.pool_timeout_seconds is not None
        limit_memory(UNLIMITED_MEMORY if own_limits else memory_limit_bytes)
        verdict = verifier.verify(response, pickle.loads(reference))
    except MemoryError:
        verdict = over_limit(
            f"memory limit: verifying this response took more than {memory_limit_bytes} bytes"
        )
    except RecursionError:
        verdict = wrong(detail="recursion limit: the response is nested too deeply")
    except VerifierUnavailable as error:
        verdict = fault(str(error))
    # The boundary: a verifier that raises has failed, whatever it raises; sys.exit is no crash either.
    except (Exception, SystemExit) as error:
        verdict = fault_of(error)
    return _timed(storable_verdict(verdict), time.perf_counter() - started)


def _timed(verdict: Verdict, seconds: float) -> Verdict:
    return Verdict(**{**_fields(verdict), "seconds": seconds})


if __name__ == "__main__":
    # A worker ends by a signal: what a verifier printed would be lost in its buffer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # The caller may be gone before the first word reaches it; no one is left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main()
