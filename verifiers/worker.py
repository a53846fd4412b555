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
import faulthandler
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
from verifiers.cache import part_digest
from verifiers.judgement import Limit
from verifiers.own import is_built_in, parsed
from verifiers.registry import build_verifier
from verifiers.storable import fault_of, storable_verdict
from verifiers.verdict import Verdict, fault, over_limit, too_deep
from verifiers.verifier import (
    CacheableVerifier,
    FastVerifier,
    LimitedVerifier,
    PreparedVerifier,
    Verifier,
    VerifierUnavailable,
)

_WARM = ("verifiers.math.verifier", "mpmath", "verifiers.exact", "verifiers.numeric", "verifiers.regex")
# Imports sympy, which few verifications need: when the first workers are forked and nothing else is asked.
_WARM_WHEN_IDLE = "verifiers.math.algebra"
_IDLE_SECONDS = 0.1
_PARENT_CHECK_SECONDS = 1.0
UNLIMITED_MEMORY = 1 << 46

FORK, END, PREPARE = b"F", b"E", b"P"
ORDER = struct.Struct("<cq")
"""To the template: FORK and the worker's bytes of memory, its socket and the pipe for its last frames come
along; END and its pid; or PREPARE and the bytes of the next message, a pickled (specification, pickled what
to prepare)."""
REPLY = struct.Struct("<qq")
"""The template's own pid when it is ready or has prepared something, the pid of the forked worker, or the
wait status of the ended one and the most bytes of memory that it ever had resident."""

READY, KEY, VERIFY = "ready", "key", "verify"
"""Steps that a worker is asked for, each with (specification, response, pickled reference). READY loads a
verifier of the user's and reads the gold, before any response is seen, and answers with what is to be
prepared, pickled. KEY answers with the digest of `cache_key`. VERIFY is all of it at once where the others
were not asked."""


def main() -> None:
    """The template: `python -m verifiers.worker CONTROL_FD POOL_PID`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    pool_process = int(sys.argv[2])
    # Ctrl-C in the terminal is for the pool's process, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    no_core_file()
    _warm_up(*_WARM)
    control.send(REPLY.pack(os.getpid(), 0))
    is_warm = False
    loaded: dict[bytes, Verifier] = {}
    while True:
        if readable(control.fileno(), timeout_seconds=_PARENT_CHECK_SECONDS if is_warm else _IDLE_SECONDS):
            order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 2)
            if not order:
                return
            kind, number = ORDER.unpack(order)
            match kind:
                case b"F":
                    answer = _fork(number, control, descriptors, loaded), 0
                case b"P":
                    answer = _prepare(control.recv(number), loaded), 0
                case _:
                    answer = _end(number)
            control.send(REPLY.pack(*answer))
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
            verifier.prepare(pickle.loads(what))
    gc.collect()
    gc.freeze()
    return os.getpid()


def _load(specification: bytes, loaded: dict[bytes, Verifier]) -> Verifier:
    if specification not in loaded:
        name, options, folder = pickle.loads(specification)
        loaded[specification] = build_verifier(name, options, folder=Path(folder) if folder else None)
    return loaded[specification]


def _fork(
    memory_limit_bytes: int, control: socket.socket, descriptors: list[int], loaded: dict[bytes, Verifier]
) -> int:
    template = os.getpid()
    connection, frames_pipe = descriptors
    process = os.fork()
    if process == 0:
        control.close()
        die_with_parent(template)
        # A process that crashes has no other way to say where.
        faulthandler.enable(file=frames_pipe, all_threads=False)
        _serve(socket.socket(fileno=connection), _Worker(loaded, memory_limit_bytes))
        os._exit(0)
    os.close(connection)
    os.close(frames_pipe)
    return process


def _end(process: int) -> tuple[int, int]:
    os.kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    return status, usage.ru_maxrss * 1024


def _serve(connection: socket.socket, worker: "_Worker") -> None:
    """The life of a worker: one request, one reply, until the socket closes."""
    gc.disable()
    read_exactly = functools.partial(frames.read_exactly, connection)
    # The pool closes a worker that it no longer wants, sometimes with a verdict unread.
    with contextlib.suppress(ConnectionError):
        while True:
            header, (specification, response, reference) = frames.receive(read_exactly)
            text = response.decode("utf-8", "surrogatepass")
            connection.sendall(worker.answer(header["step"], specification, text, reference))
            if gc.get_count()[0] > 200_000:
                gc.collect()


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}


class _Worker:
    """State of a worker between two requests."""

    def __init__(self, loaded: dict[bytes, Verifier], memory_limit_bytes: int) -> None:
        self._loaded = loaded
        self._memory_limit_bytes = memory_limit_bytes
        self._read: tuple[bytes, bytes, Any] | None = None
        """(specification, pickled reference, reference) of the verification that has begun."""

    def answer(self, step: str, specification: bytes, response: str, reference: bytes) -> bytes:
        """The reply to one request: a verdict where there is one, the limit that it met, what was found.

        What the response causes is WRONG, what the verifier causes is FAULT (see `verifiers.judgement`)."""
        started = time.perf_counter()
        verdict, limit, found = None, None, b""
        try:
            match step:
                case "ready":
                    found = self._ready(specification, reference)
                case "key":
                    found = self._key(specification, response, reference)
                case _:
                    verdict = self._verify(specification, response, reference)
        except VerifierUnavailable as error:
            verdict = fault(str(error))
        # The boundary: a verifier that raises has failed, whatever it raises; sys.exit is no crash either.
        except (Exception, SystemExit) as error:
            verdict, limit = self._failed(error, has_response=step != READY)
        if step == VERIFY or verdict is not None:
            verdict = _timed(storable_verdict(verdict), time.perf_counter() - started)
        return frames.pack(
            {"verdict": None if verdict is None else _fields(verdict), "limit": limit}, [found]
        )

    def _failed(self, error: BaseException, *, has_response: bool) -> tuple[Verdict, Limit | None]:
        if has_response and isinstance(error, MemoryError):
            limit_bytes = self._memory_limit_bytes
            detail = f"memory limit: verifying this response took more than {limit_bytes} bytes"
            return over_limit(detail), Limit.MEMORY
        if has_response and isinstance(error, RecursionError):
            return too_deep(), Limit.RECURSION
        return fault_of(error), None

    def _ready(self, specification: bytes, pickled: bytes) -> bytes:
        limit_memory(UNLIMITED_MEMORY)
        verifier = _load(specification, self._loaded)
        reference = parsed(verifier, pickle.loads(pickled))
        self._read = specification, pickled, reference
        what = verifier.preparation(reference) if isinstance(verifier, PreparedVerifier) else None
        return b"" if what is None else pickle.dumps(what)

    def _key(self, specification: bytes, response: str, pickled: bytes) -> bytes:
        verifier, reference = self._begun(specification, pickled)
        assert isinstance(verifier, CacheableVerifier)
        # As deep as it goes: `verify` has the word.
        with contextlib.suppress(RecursionError):
            part = verifier.cache_key(response, reference)
            return b"" if part is None else part_digest(part) or b""
        return b""

    def _verify(self, specification: bytes, response: str, pickled: bytes) -> Verdict:
        verifier, reference = self._begun(specification, pickled)
        # `verify` may change it.
        self._read = None
        fast = None
        if isinstance(verifier, FastVerifier) and not is_built_in(verifier):
            with contextlib.suppress(RecursionError):
                fast = verifier.verify_fast(response, reference)
        return verifier.verify(response, reference) if fast is None else fast

    def _begun(self, specification: bytes, pickled: bytes) -> tuple[Verifier, Any]:
        """The verifier under its limit on memory, and the reference."""
        if specification not in self._loaded:
            limit_memory(UNLIMITED_MEMORY)
        verifier = _load(specification, self._loaded)
        own_limits = isinstance(verifier, LimitedVerifier) and verifier.pool_timeout_seconds is not None
        limit_memory(UNLIMITED_MEMORY if own_limits else self._memory_limit_bytes)
        if self._read is None or self._read[:2] != (specification, pickled):
            self._read = specification, pickled, parsed(verifier, pickle.loads(pickled))
        return verifier, self._read[2]


def _timed(verdict: Verdict, seconds: float) -> Verdict:
    return Verdict(**{**_fields(verdict), "seconds": seconds})


if __name__ == "__main__":
    # A worker ends by a signal: what a verifier printed would be lost in its buffer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # The caller may be gone before the first word reaches it; no one is left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main()
