"""The processes behind VerifierPool: workers that serve one verification at a time, forked from a template
(`verifiers.fork_server`) which has the math verifier imported, and sympy
before the first worker."""

import contextlib
import functools
import pickle
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox import frames
from sandbox.kernel import limit_memory
from verifiers import fork_server
from verifiers.cache import part_digest
from verifiers.judgement import Limit, all_faults, as_json, checked_verdicts
from verifiers.own import is_built_in, parsed
from verifiers.registry import build_verifier
from verifiers.storable import fault_of, storable_verdict
from verifiers.task import Task, with_task, with_tasks
from verifiers.verdict import Verdict, as_fields, correct, fault, over_limit, too_deep
from verifiers.verifier import (
    CacheableVerifier,
    FastVerifier,
    LimitedVerifier,
    PreparedVerifier,
    Verifier,
    VerifierUnavailable,
)

_WARM = ("verifiers.math.verifier", "mpmath", "verifiers.exact", "verifiers.numeric")
# Sympy, which no worker may import in the time of a response.
_WARM_TO_FORK = ("verifiers.math.algebra",)
UNLIMITED_MEMORY = 1 << 46

READY, KEY, VERIFY, VERIFY_GROUP = "ready", "key", "verify", "verify_group"
"""Steps that a worker is asked for, each with (specification, response, pickled reference, pickled task or
nothing). READY loads a verifier of the user's and reads the gold, before any response is seen, and answers
with what is to be prepared, pickled. KEY answers with the digest of `cache_key`. VERIFY is all of it at once
where the others were not asked. VERIFY_GROUP is the same for pickled lists of responses and tasks; it finds
their verdicts, and its own is a fault where all of them are."""


def main() -> None:
    """The template: `python -m verifiers.worker CONTROL_FD POOL_PID`."""
    loaded: dict[bytes, Verifier] = {}
    fork_server.run(
        lambda payload: _prepare(payload, loaded),
        lambda connection, memory_bytes: _serve(connection, _Worker(loaded, memory_bytes)),
        warm=_WARM,
        warm_to_fork=_WARM_TO_FORK,
    )


def _prepare(payload: bytes, loaded: dict[bytes, Verifier]) -> None:
    """`payload`: a pickled (specification, pickled what to prepare)."""
    specification, what = pickle.loads(payload)
    verifier = _load(specification, loaded)
    if isinstance(verifier, PreparedVerifier):
        verifier.prepare(pickle.loads(what))


def _load(specification: bytes, loaded: dict[bytes, Verifier]) -> Verifier:
    if specification not in loaded:
        name, options, folder = pickle.loads(specification)
        loaded[specification] = build_verifier(name, options, folder=Path(folder) if folder else None)
    return loaded[specification]


def _serve(connection: socket.socket, worker: "_Worker") -> None:
    """The life of a worker: one request, one reply, until the socket closes."""
    read_exactly = functools.partial(frames.read_exactly, connection)
    while True:
        header, (specification, response, reference, task) = frames.receive(read_exactly)
        connection.sendall(worker.answer(header["step"], specification, response, reference, task))
        fork_server.collect_garbage()


class _Worker:
    """State of a worker between two requests."""

    def __init__(self, loaded: dict[bytes, Verifier], memory_limit_bytes: int) -> None:
        self._loaded = loaded
        self._memory_limit_bytes = memory_limit_bytes
        self._read: tuple[bytes, bytes, Any] | None = None
        """(specification, pickled reference, reference) of the verification that has begun."""

    def answer(
        self, step: str, specification: bytes, response: bytes, reference: bytes, packed_task: bytes
    ) -> bytes:
        """The reply to one request: a verdict where there is one, the limit that it met, what was found.

        What the response causes is WRONG, what the verifier causes is FAULT (see `verifiers.judgement`)."""
        started = time.perf_counter()
        verdict, limit, found = None, None, b""
        try:
            task = pickle.loads(packed_task) if packed_task else Task()
            text = "" if step == VERIFY_GROUP else response.decode("utf-8", "surrogatepass")
            match step:
                case "ready":
                    found = self._ready(specification, reference)
                case "key":
                    found = self._key(specification, text, reference, task)
                case "verify_group":
                    verdict, found = self._verify_group(specification, response, reference, task)
                case _:
                    verdict = self._verify(specification, text, reference, task)
        except VerifierUnavailable as error:
            verdict = fault(str(error))
        # The boundary: a verifier that raises has failed, whatever it raises; sys.exit is no crash either.
        except (Exception, SystemExit) as error:
            verdict, limit = self._failed(error, has_response=step != READY)
        if step in (VERIFY, VERIFY_GROUP) or verdict is not None:
            verdict = replace(storable_verdict(verdict), seconds=time.perf_counter() - started)
        return frames.pack(
            {"verdict": None if verdict is None else as_fields(verdict), "limit": limit}, [found]
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

    def _key(self, specification: bytes, response: str, pickled: bytes, task: Task) -> bytes:
        verifier, reference = self._begun(specification, pickled)
        assert isinstance(verifier, CacheableVerifier)
        # As deep as it goes: `verify` has the word.
        with contextlib.suppress(RecursionError):
            part = with_task(verifier.cache_key)(response, reference, task)
            return b"" if part is None else part_digest(part) or b""
        return b""

    def _verify(self, specification: bytes, response: str, pickled: bytes, task: Task) -> Verdict:
        verifier, reference = self._begun(specification, pickled)
        # `verify` may change it.
        self._read = None
        fast = None
        if isinstance(verifier, FastVerifier) and not is_built_in(verifier):
            with contextlib.suppress(RecursionError):
                fast = with_task(verifier.verify_fast)(response, reference, task)
        return with_task(verifier.verify)(response, reference, task) if fast is None else fast

    def _verify_group(
        self, specification: bytes, packed: bytes, pickled: bytes, tasks: Any
    ) -> tuple[Verdict, bytes]:
        verifier, reference = self._begun(specification, pickled)
        self._read = None
        responses: list[str] = pickle.loads(packed)
        # A list of the verifier's own: it may change the one that it is given.
        found = with_tasks(verifier.verify_group)(list(responses), reference, tasks)  # type: ignore[attr-defined]
        verdicts = checked_verdicts(found, len(responses))
        return verdicts[0] if all_faults(verdicts) else correct(), as_json(verdicts)

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


if __name__ == "__main__":
    main()
