"""The processes behind VerifierPool: a template that is warm, and workers that it forks.

    pool --control socket--> template --fork--> worker <--its own socket-- pool

The template has the math verifier imported, sympy too once it was idle for a moment, and a frozen heap; it
forks a worker on request (a socket comes with the request), kills one on request, and says how it died. It is
single-threaded and never runs a verifier, so it cannot hang. When the pool's process is gone, by whatever
death, the template reads the end of its socket and exits, and the kernel kills its workers. A worker serves
one verification at a time over its socket, until that closes."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import pickle
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from sandbox.polling import readable
from verifiers.limits import die_with_parent, limit_memory, no_core_file
from verifiers.registry import load_verifier
from verifiers.storable import fault_of, storable_verdict
from verifiers.verdict import Verdict, fault, over_limit, wrong
from verifiers.verifier import LimitedVerifier, Verifier, VerifierUnavailable

__all__ = ["frame", "main", "verdict_from_json"]

_WARM = ("verifiers.math.verifier", "mpmath", "verifiers.exact", "verifiers.numeric", "verifiers.regex")
# Imports sympy, which few verifications need: when the first workers are forked and nothing else is asked.
_WARM_WHEN_IDLE = "verifiers.math.algebra"
_IDLE_SECONDS = 0.1
_HEADER = struct.Struct(">I")
_PARENT_CHECK_SECONDS = 1.0
UNLIMITED_MEMORY = 1 << 46


def frame(payload: bytes) -> bytes:
    """The payload with its length before it, four bytes, big-endian."""
    return _HEADER.pack(len(payload)) + payload


def verdict_from_json(payload: bytes) -> Verdict:
    return Verdict(**json.loads(payload, object_hook=_outcome))


def _outcome(fields: dict[str, Any]) -> dict[str, Any]:
    from verifiers.verdict import Outcome

    return {**fields, "outcome": Outcome(fields["outcome"])}


def main() -> None:
    """The template: `python -m verifiers.worker CONTROL_FD POOL_PID`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    pool_process = int(sys.argv[2])
    # Ctrl-C in the terminal is for the pool's process, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    no_core_file()
    for module in _WARM:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    control.sendall(frame(b'{"ready": true}'))
    is_warm = False
    while True:
        patience = _PARENT_CHECK_SECONDS if is_warm else _IDLE_SECONDS
        has_request = bool(readable(control.fileno(), timeout_seconds=patience))
        if not has_request and not is_warm:
            importlib.import_module(_WARM_WHEN_IDLE)
            gc.collect()
            gc.freeze()
            is_warm = True
            continue
        if not has_request:
            if os.getppid() != pool_process:
                # A child of the pool's process may hold a copy of our socket open: its end never comes.
                return
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        for line in message.splitlines():
            _obey(json.loads(line), control, descriptors)


def _obey(command: dict[str, Any], control: socket.socket, descriptors: list[int]) -> None:
    if command["do"] == "fork":
        template = os.getpid()
        process = os.fork()
        if process == 0:
            control.close()
            die_with_parent(template)
            _serve(socket.socket(fileno=descriptors[0]), int(command["memory_limit_bytes"]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(frame(json.dumps({"forked": process}).encode()))
    else:
        process = int(command["process"])
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        control.sendall(frame(json.dumps({"ended": process, "status": status}).encode()))


def _serve(connection: socket.socket, memory_limit_bytes: int) -> None:
    """The life of a worker: one request, one reply, until the socket closes."""
    gc.disable()
    loaded: dict[bytes, Verifier] = {}
    while True:
        request = _receive(connection)
        if request is None:
            return
        verdict = _answer(pickle.loads(request), loaded, memory_limit_bytes)
        try:
            connection.sendall(frame(json.dumps(_fields(verdict)).encode()))
        except ConnectionError:
            # The pool has closed meanwhile: nobody wants the verdict.
            return
        if gc.get_count()[0] > 200_000:
            gc.collect()


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}


def _receive(connection: socket.socket) -> bytes | None:
    header = _exactly(connection, _HEADER.size)
    return None if header is None else _exactly(connection, _HEADER.unpack(header)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = connection.recv(min(size - len(parts), 1 << 20))
        except ConnectionError:
            # Closed by a pool that left a verdict unread.
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def _answer(
    request: tuple[bytes, str, bytes], loaded: dict[bytes, Verifier], memory_limit_bytes: int
) -> Verdict:
    """The verdict on one request. What the response causes is WRONG; what the verifier causes is FAULT."""
    specification, response, reference = request
    started = time.perf_counter()
    try:
        verifier = loaded.get(specification)
        if verifier is None:
            name, options, folder = pickle.loads(specification)
            limit_memory(UNLIMITED_MEMORY)
            verifier = loaded[specification] = load_verifier(
                name, options, folder=Path(folder) if folder else None
            )
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
    # The caller may be gone before the first word reaches it; nobody is left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main()
