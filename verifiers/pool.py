"""VerifierPool: verdicts from killable worker processes, one call that never blocks the event loop.

Each worker holds one verification at a time. The pool holds its deadline: a worker that is late is killed and
replaced by a fork of the warm template, in milliseconds, and no other verification notices. Late after using
its CPU time: the response caused it, WRONG. Late without having had the CPU: the machine is overloaded, it
gets more time, then a retry on a fresh worker, then FAULT. A worker that dies otherwise is also retried once.

Used from one event loop; `BlockingVerifierPool` is the same for threads. Nothing heavy is imported here."""

import asyncio
import hashlib
import pickle
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox import frames
from verifiers.cache import ReferenceDigests, VerdictCache, part_digest, source_stamp
from verifiers.golds import parse_gold
from verifiers.registry import build_verifier, check_options
from verifiers.storable import fault_of, storable_verdict
from verifiers.template import Template, VerifierWorker, WorkerDied, describe_end
from verifiers.verdict import Outcome, Verdict, fault, over_limit, wrong
from verifiers.verifier import (
    AsyncVerifier,
    CacheableVerifier,
    ClosableVerifier,
    FastVerifier,
    LimitedVerifier,
    PreparedVerifier,
    Verifier,
)

MAX_RESPONSE_CHARACTERS = 4_000_000
_STARVED_SHARE = 0.5
_MAX_EXTENSIONS = 4


class _Loaded:
    """One verifier in the caller's process, for the fast path and the cache, and its
    specification for the workers."""

    def __init__(self, verifier: Verifier, specification: bytes, timeout_seconds: float) -> None:
        self.verifier = verifier
        self.specification = specification
        self.fast = verifier if isinstance(verifier, FastVerifier) else None
        self.waits = verifier if isinstance(verifier, AsyncVerifier) else None
        self.cacheable = verifier if isinstance(verifier, CacheableVerifier) else None
        self.prepared = verifier if isinstance(verifier, PreparedVerifier) else None
        own_limit = verifier.pool_timeout_seconds if isinstance(verifier, LimitedVerifier) else None
        self.has_own_limit = own_limit is not None
        self.timeout_seconds = timeout_seconds if own_limit is None else own_limit


class VerifierPool:
    def __init__(
        self,
        num_workers: int = 1,
        timeout_seconds: float = 2.0,
        memory_limit_bytes: int = 2 << 30,
        recycle_after: int = 2000,
        cache_size: int = 65_536,
        cache_bytes: int = 64 << 20,
        prints: Path | None = None,
    ) -> None:
        """`cache_size` in entries; `cache_bytes` bounds their memory (programs are long answers). What
        verifiers print in the workers goes to the file `prints`, else to standard error."""
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}, expected at least 1.")
        if timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0.")
        if recycle_after < 1:
            raise ValueError(f"recycle_after is {recycle_after}, expected at least 1.")
        self._num_workers = num_workers
        self._timeout_seconds = timeout_seconds
        self._recycle_after = recycle_after
        self._cache = VerdictCache(max_entries=cache_size, max_bytes=cache_bytes)
        self._digests = ReferenceDigests()
        self._loaded: dict[Hashable, _Loaded] = {}
        self._template = Template(memory_limit_bytes, prints)
        self._idle: asyncio.LifoQueue[VerifierWorker | None] = asyncio.LifoQueue()
        self._busy: set[VerifierWorker] = set()
        self._is_open = False
        self.num_killed = 0
        """Workers killed because they were late, since the start."""
        self.num_cached = 0
        """Verdicts given from the cache."""
        self.num_fast = 0
        """Verdicts settled in the caller's process."""
        self.queue_seconds = 0.0
        """Total time that verifications waited for a worker."""

    async def start(self) -> None:
        """Start the template; workers are forked from it when they are first needed."""
        if self._is_open:
            raise ValueError("This VerifierPool is already started.")
        await self._template.start()
        for _ in range(self._num_workers):
            self._idle.put_nowait(None)
        self._is_open = True

    async def close(self) -> None:
        """Kill the workers and the template, close the verifiers. Verifications in flight end as FAULT."""
        self._is_open = False
        await self._template.close()
        for loaded in self._loaded.values():
            if isinstance(loaded.verifier, ClosableVerifier):
                await asyncio.to_thread(loaded.verifier.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def parse_reference(
        self, verifier_name: str, options: Mapping[str, object], raw: object, *, folder: Path | None = None
    ) -> Any:
        """The reference for `verify`, from a row's value. Raises ValueError on a bad gold."""
        return parse_gold(self._load(verifier_name, options, folder).verifier, raw)

    async def verify(
        self,
        verifier_name: str,
        options: Mapping[str, object],
        response: str,
        reference: Any,
        *,
        folder: Path | None = None,
    ) -> Verdict:
        """The verdict on one response; FAULT only when the verifier failed twice. No response makes it raise.

        Raises ValueError when there is no such verifier or it does not take the options."""
        if not self._is_open:
            raise ValueError("This VerifierPool is not started: use `async with` or await start().")
        loaded = self._load(verifier_name, options, folder)
        try:
            return storable_verdict(await self._verify(loaded, response, reference))
        # The boundary: verify_fast and cache_key are the verifier's own code too.
        except (Exception, SystemExit) as error:
            return fault_of(error)

    async def _verify(self, loaded: _Loaded, response: str, reference: Any) -> Verdict:
        if len(response) > MAX_RESPONSE_CHARACTERS:
            return wrong(detail=f"the response has more than {MAX_RESPONSE_CHARACTERS} characters")
        started = time.perf_counter()
        try:
            verdict = None if loaded.fast is None else loaded.fast.verify_fast(response, reference)
            key = None if verdict is not None else self._key(loaded, response, reference)
        except RecursionError:
            # Of the response's making: a worker, which says WRONG to that, has the word.
            verdict, key = None, None
        if verdict is not None:
            self.num_fast += 1
            return replace(verdict, seconds=time.perf_counter() - started)
        known = None if key is None else self._cache.get(key)
        if known is not None:
            self.num_cached += 1
            return replace(known, seconds=time.perf_counter() - started)
        if loaded.waits is not None:
            verdict = await waited(loaded.waits, response, reference)
        else:
            verdict = await self._in_worker(loaded, response, reference)
        if key is not None:
            self._cache.put(key, verdict)
        return verdict

    def _key(self, loaded: _Loaded, response: str, reference: Any) -> bytes | None:
        """The cache's key of this verification; None: it is not to be cached."""
        if loaded.cacheable is None:
            return None
        part = loaded.cacheable.cache_key(response, reference)
        ours = None if part is None else part_digest(part)
        theirs = None if ours is None else self._digests.digest(reference)
        if ours is None or theirs is None:
            return None
        # Digests of one length each, and the specification last: no two keys run into each other.
        stamp = repr(source_stamp(loaded.verifier)).encode()
        return hashlib.blake2b(ours + theirs + stamp + loaded.specification, digest_size=32).digest()

    def _load(self, name: str, options: Mapping[str, object], folder: Path | None) -> _Loaded:
        # repr tells 1 from True and 1.0, which as keys would be equal.
        key = (name, repr(sorted(options.items())), folder)
        found = self._loaded.get(key)
        if found is None:
            plain = check_options(name, options, folder=folder)
            verifier = build_verifier(name, plain, folder=folder)
            specification = pickle.dumps((name, plain, str(folder) if folder else None))
            found = self._loaded[key] = _Loaded(verifier, specification, self._timeout_seconds)
        return found

    async def _in_worker(self, loaded: _Loaded, response: str, reference: Any) -> Verdict:
        try:
            parts = [loaded.specification, response.encode("utf-8", "surrogatepass"), pickle.dumps(reference)]
        except Exception as error:  # whatever a custom reference raises when it is pickled
            return fault(f"the reference cannot be sent to a worker: {type(error).__name__}: {error}")
        request = frames.pack({}, parts)
        try:
            num_prepared = await self._prepare(loaded, reference)
        except WorkerDied as error:
            return fault(str(error))
        verdict = await self._attempt(loaded, request, num_prepared)
        if verdict.outcome is Outcome.FAULT and self._is_open:
            again = await self._attempt(loaded, request, num_prepared, fresh=True)
            if again.outcome is not Outcome.FAULT or not _is_crash(verdict, again):
                return again
            # It killed two workers, the second one fresh: the response does that, not the machine.
            return over_limit(f"the verifier died twice on this response: {again.detail}")
        return verdict

    async def _prepare(self, loaded: _Loaded, reference: Any) -> int:
        """How many preparations a worker for this must have; makes the missing one first."""
        if loaded.prepared is None:
            return 0
        what = loaded.prepared.preparation(reference)
        if what is None:
            return 0
        return await self._template.prepare(pickle.dumps((loaded.specification, what)))

    async def _attempt(
        self, loaded: _Loaded, request: bytes, num_prepared: int, *, fresh: bool = False
    ) -> Verdict:
        waited = time.perf_counter()
        worker = await self._idle.get()
        self.queue_seconds += time.perf_counter() - waited
        started = time.perf_counter()
        try:
            if worker is not None:
                is_used_up = worker.num_served >= self._recycle_after or worker.num_prepared < num_prepared
                if fresh or is_used_up:
                    await self._template.end(worker)
                    worker = None
            if worker is None:
                worker = await self._template.fork()
            self._busy.add(worker)
            verdict = await self._ask(worker, loaded, request)
            self._busy.discard(worker)
            if not worker.is_alive:
                worker = None
            return verdict
        except WorkerDied as error:
            if worker is not None:
                self._busy.discard(worker)
            worker = None
            return replace(fault(str(error)), seconds=time.perf_counter() - started)
        except asyncio.CancelledError:
            # The worker may be in the middle of it: it cannot be given to anyone else.
            if worker is not None:
                self._busy.discard(worker)
                self._template.end_soon(worker)
            worker = None
            raise
        finally:
            self._idle.put_nowait(worker)

    async def _ask(self, worker: VerifierWorker, loaded: _Loaded, request: bytes) -> Verdict:
        """One request to one worker, killed when it is late."""
        limit = loaded.timeout_seconds
        started = time.perf_counter()
        cpu_before = worker.cpu_seconds()
        reply = asyncio.ensure_future(worker.ask(request))
        try:
            for _ in range(1 + _MAX_EXTENSIONS):
                done, _ = await asyncio.wait({reply}, timeout=limit)
                if done:
                    return await self._result(worker, reply)
                used = worker.cpu_seconds() - cpu_before
                if loaded.has_own_limit or used >= limit * _STARVED_SHARE:
                    break
        finally:
            if not reply.done():
                reply.cancel()
        seconds = time.perf_counter() - started
        used = worker.cpu_seconds() - cpu_before
        self.num_killed += 1
        await self._template.end(worker)
        if loaded.has_own_limit:
            return replace(fault(f"the verifier did not answer in {limit:g} s"), seconds=seconds)
        if used >= limit * _STARVED_SHARE:
            detail = f"timeout: verifying this response took more than {limit:g} s"
            return replace(over_limit(detail), seconds=seconds)
        detail = (
            f"timeout: no answer in {seconds:.1f} s with {used:.2f} s of CPU time: the machine is overloaded"
        )
        return replace(fault(detail), seconds=seconds)

    async def _result(self, worker: VerifierWorker, reply: asyncio.Future[Verdict]) -> Verdict:
        try:
            return reply.result()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise WorkerDied(describe_end(await self._template.end(worker))) from error


async def waited(verifier: AsyncVerifier, response: str, reference: Any) -> Verdict:
    """The verdict of a verifier that waits for something else, tried twice; as long as it takes."""
    started = time.perf_counter()
    for attempt in range(2):
        try:
            verdict = storable_verdict(await verifier.verify_async(response, reference))
        # The boundary: a verifier that raises has failed, whatever it raises.
        except (Exception, SystemExit) as error:
            verdict = fault_of(error)
        if verdict.outcome is not Outcome.FAULT or attempt:
            break
    return replace(verdict, seconds=time.perf_counter() - started)


def _is_crash(first: Verdict, second: Verdict) -> bool:
    return first.detail.startswith("crash:") and second.detail.startswith("crash:")
