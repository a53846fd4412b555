"""VerifierPool: verdicts from killable worker processes, one call that never blocks the event loop.

Each worker holds one verification at a time. The pool holds its deadline: a worker that is late is killed and
replaced by a fork of the warm template, in milliseconds, and no other verification notices. What a response
may cost and what is a FAULT says `verifiers.judgement`. Verifiers of the user's run in workers alone, the
fast path, the key in the cache and the reading of a gold included.

Used from one event loop. Nothing heavy is imported here."""

import asyncio
import hashlib
import logging
import pickle
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from verifiers.attempt import (
    Job,
    Late,
    Limits,
    Loaded,
    VerifierWorker,
    begun,
    death,
    judged,
    key_of_options,
    load,
    ready,
    waited,
    waited_group,
    within_limits,
)
from verifiers.cache import ReferenceDigests, VerdictCache, part_digest, source_stamp
from verifiers.golds import parse_gold
from verifiers.judgement import GroupJudgement, Judgement, Limit, of_worker, shared
from verifiers.own import OwnLoop, in_thread
from verifiers.registry import BUILT_IN
from verifiers.storable import fault_of, storable_verdict
from verifiers.task import Task
from verifiers.template import Template, WorkerDied
from verifiers.verdict import Outcome, Verdict, fault, wrong
from verifiers.verifier import ClosableVerifier, MeteredVerifier
from verifiers.worker import KEY, VERIFY, VERIFY_GROUP

log = logging.getLogger(__name__)

MAX_RESPONSE_CHARACTERS = 4_000_000
COMPOSED = ("weighted",)
"""Built-in verifiers that may hold one of the user's."""
CLOSE_SECONDS = 10.0
"""For `close` of a verifier of the user's, before it is left behind."""
_NO_TASK = Task()
_TOO_LONG = f"the response has more than {MAX_RESPONSE_CHARACTERS} characters"


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
        load_seconds: float = 60.0,
    ) -> None:
        """`cache_size` in entries; `cache_bytes` bounds their memory (programs are long answers). What
        verifiers print in the workers goes to the file `prints`, else to standard error. `load_seconds`: how
        long a verifier of the user's may take to load in a worker, and to read a gold."""
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}, expected at least 1.")
        if timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0.")
        if recycle_after < 1:
            raise ValueError(f"recycle_after is {recycle_after}, expected at least 1.")
        self._num_workers = num_workers
        self._limits = Limits(timeout_seconds, False, load_seconds, memory_limit_bytes)
        self._recycle_after = recycle_after
        self._cache = VerdictCache(max_entries=cache_size, max_bytes=cache_bytes)
        self._digests = ReferenceDigests()
        self._loaded: dict[Hashable, Loaded] = {}
        self._loading: dict[Hashable, asyncio.Future[Loaded]] = {}
        self._own_loop = OwnLoop()
        self._template = Template(
            "verifiers.worker", VerifierWorker, memory_limit_bytes=memory_limit_bytes, prints=prints
        )
        self._idle: asyncio.LifoQueue[VerifierWorker | None] = asyncio.LifoQueue()
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
        self._own_loop.close()
        for loaded in self._loaded.values():
            if isinstance(loaded.verifier, ClosableVerifier):
                await _close(loaded.verifier, None if loaded.is_built_in else CLOSE_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def counters(self) -> dict[str, float]:
        """Requests, tokens and seconds of verifiers that ask models, since the start; empty without any.

        A part of a weighted verifier is asked in a worker, and not counted."""
        total: dict[str, float] = {}
        for loaded in self._loaded.values():
            if loaded.is_built_in and isinstance(loaded.verifier, MeteredVerifier):
                for name, count in loaded.verifier.counters.items():
                    total[name] = total.get(name, 0.0) + count
        return total

    def parse_reference(
        self, verifier_name: str, options: Mapping[str, object], raw: object, *, folder: Path | None = None
    ) -> Any:
        """The reference for `verify`, from a row's value. Raises ValueError on a bad gold."""
        return parse_gold(self._load(verifier_name, options, folder).verifier, raw)

    def is_group_wise(
        self, verifier_name: str, options: Mapping[str, object], *, folder: Path | None = None
    ) -> bool:
        """Whether the verifier judges all responses of a group at once. Raises ValueError as `verify`."""
        return self._load(verifier_name, options, folder).is_group_wise

    async def verify(
        self,
        verifier_name: str,
        options: Mapping[str, object],
        response: str,
        reference: Any,
        *,
        folder: Path | None = None,
        task: Callable[[], Task] = Task,
    ) -> Verdict:
        """The verdict on one response; FAULT only when the verifier failed twice. No response makes it raise.

        `task` makes the response's task, where the verifier takes it. Raises ValueError when there is no such
        verifier or it does not take the options."""
        judged = await self.judge(verifier_name, options, response, reference, folder=folder, task=task)
        return judged.verdict

    async def judge(
        self,
        verifier_name: str,
        options: Mapping[str, object],
        response: str,
        reference: Any,
        *,
        folder: Path | None = None,
        task: Callable[[], Task] = Task,
    ) -> Judgement:
        """As `verify`, with the attempts that failed and the limit that the response met."""
        if not self._is_open:
            raise ValueError("This VerifierPool is not started: use `async with` or await start().")
        if len(response) > MAX_RESPONSE_CHARACTERS:
            return Judgement(wrong(detail=_TOO_LONG))
        loaded = await self._load_aside(verifier_name, options, folder)
        if loaded.is_group_wise and not loaded.judges_alone:
            found = await self.judge_group(
                verifier_name, options, [response], reference, folder=folder, tasks=lambda: [task()]
            )
            return Judgement(found.verdicts[0], found.faults)
        try:
            return await self._judge(loaded, response, reference, task() if loaded.takes_task else _NO_TASK)
        # The boundary: verify_fast and cache_key are the verifier's own code too.
        except (Exception, SystemExit) as error:
            return Judgement(fault_of(error))

    async def judge_group(
        self,
        verifier_name: str,
        options: Mapping[str, object],
        responses: Sequence[str],
        reference: Any,
        *,
        folder: Path | None = None,
        tasks: Callable[[], Sequence[Task]] | None = None,
    ) -> GroupJudgement:
        """All responses to one task, at least one, by a group-wise verifier. None makes it raise; what keeps
        the verifier from its answer is a FAULT of them all.

        `tasks` makes the responses' tasks, in their order. Raises ValueError as `verify`, and for a verifier
        that is not group-wise."""
        if not self._is_open:
            raise ValueError("This VerifierPool is not started: use `async with` or await start().")
        loaded = await self._load_aside(verifier_name, options, folder)
        if not loaded.is_group_wise:
            raise ValueError(f"The verifier {verifier_name!r} judges one response at a time.")
        told = [_NO_TASK] * len(responses) if tasks is None or not loaded.takes_task else list(tasks())
        fitting = [i for i, text in enumerate(responses) if len(text) <= MAX_RESPONSE_CHARACTERS]
        verdicts = [wrong(detail=_TOO_LONG)] * len(responses)
        if not fitting:
            return GroupJudgement(tuple(verdicts))
        found = await self._judge_fitting(
            loaded, [responses[i] for i in fitting], reference, [told[i] for i in fitting]
        )
        for i, verdict in zip(fitting, found.verdicts, strict=True):
            verdicts[i] = verdict
        return GroupJudgement(tuple(verdicts), found.faults)

    async def _judge_fitting(
        self, loaded: Loaded, responses: Sequence[str], reference: Any, tasks: Sequence[Task]
    ) -> GroupJudgement:
        num, started = len(responses), time.perf_counter()
        if num < loaded.min_responses:
            problem = f"the verifier compares at least {loaded.min_responses} responses, there are {num}"
            return shared([fault(problem)] * num, 0.0)
        keys = self._group_keys(loaded, responses, reference, tasks)
        known = [self._cache.get(key) for key in keys]
        if known and (kept := [verdict for verdict in known if verdict is not None]) and len(kept) == num:
            self.num_cached += num
            return shared(kept, time.perf_counter() - started)
        if loaded.group_waits is not None:
            work = waited_group(loaded.group_waits, loaded.verifier, responses, reference, tasks)
            try:
                found = await (work if loaded.is_built_in else self._own_loop.run(work))
            # The boundary: the pool may be closed meanwhile.
            except (Exception, SystemExit) as error:
                found = shared([fault_of(error)] * num, time.perf_counter() - started)
        else:
            make_job = partial(loaded.group_job, responses, tasks=tasks)
            found = of_worker(await self._in_worker(loaded, reference, make_job), num)
        for key, verdict in zip(keys, found.verdicts, strict=bool(keys)):
            self._cache.put(key, verdict)
        return found

    def _group_keys(
        self, loaded: Loaded, responses: Sequence[str], reference: Any, tasks: Sequence[Task]
    ) -> list[bytes]:
        """The cache's keys of the verdicts on a group, made of all that decides; none where it is not to be
        cached."""
        if not loaded.caches_groups:
            return []
        told = tuple(self._digests.digest(task) for task in tasks) if loaded.takes_task else ()
        part = None if None in told else part_digest((tuple(responses), told))
        key = self._key(loaded, part, reference, _NO_TASK)
        if key is None:
            return []
        members = (key + str(place).encode() for place in range(len(responses)))
        return [hashlib.blake2b(member, digest_size=32).digest() for member in members]

    async def _judge(self, loaded: Loaded, response: str, reference: Any, task: Task) -> Judgement:
        started = time.perf_counter()
        try:
            verdict = None if loaded.fast is None else loaded.fast(response, reference, task)
            is_asked = verdict is None and loaded.is_built_in
            part = loaded.part_of(response, reference, task) if is_asked else None
        except RecursionError:
            # Of the response's making: a worker, which says WRONG to that, has the word.
            verdict, part = None, None
        if verdict is not None:
            self.num_fast += 1
            verdict = storable_verdict(verdict)
            return Judgement(replace(verdict, seconds=time.perf_counter() - started))
        if loaded.waits is not None and not loaded.is_built_in:
            reference, part = await self._own_loop.run(begun(loaded, response, reference, task))
        key = self._key(loaded, part, reference, task)
        known = self._known(key, started)
        if known is not None:
            return known
        if loaded.waits is None:
            return await self._in_worker(
                loaded, reference, lambda it: self._job(loaded, response, it, reference, task, key)
            )
        work = waited(loaded.waits, response, reference, task)
        judgement = await (work if loaded.is_built_in else self._own_loop.run(work))
        self._keep(key, judgement)
        return judgement

    def _known(self, key: bytes | None, started: float) -> Judgement | None:
        """From the cache; `started`: when this verification began."""
        known = None if key is None else self._cache.get(key)
        if known is None:
            return None
        self.num_cached += 1
        return Judgement(replace(known, seconds=time.perf_counter() - started))

    def _keep(self, key: bytes | None, judgement: Judgement) -> None:
        if key is not None:
            self._cache.put(key, judgement.verdict)

    def _key(self, loaded: Loaded, part: bytes | None, reference: Any, task: Task) -> bytes | None:
        """The cache's key of a verification, by the digest of what decides of the response; None: it is not
        to be cached."""
        theirs = None if part is None else self._digests.digest(reference)
        asked = self._digests.digest(task) if loaded.takes_task else b""
        if part is None or theirs is None or asked is None:
            return None
        # Digests of one length each, and the specification last: no two keys run into each other.
        stamp = repr(source_stamp(loaded.verifier)).encode()
        return hashlib.blake2b(part + theirs + asked + stamp + loaded.specification, digest_size=32).digest()

    async def _load_aside(self, name: str, options: Mapping[str, object], folder: Path | None) -> Loaded:
        """As `_load`; what may be a verifier of the user's is built in a thread, once."""
        key = key_of_options(name, options, folder)
        if key in self._loaded or (name in BUILT_IN and name not in COMPOSED):
            return self._load(name, options, folder)
        loading = self._loading.get(key)
        if loading is None:
            work = in_thread(lambda: self._load(name, options, folder))
            loading = self._loading[key] = asyncio.ensure_future(work)
            loading.add_done_callback(lambda _: self._loading.pop(key, None))
        return await asyncio.shield(loading)

    def _load(self, name: str, options: Mapping[str, object], folder: Path | None) -> Loaded:
        key = key_of_options(name, options, folder)
        found = self._loaded.get(key)
        if found is None:
            found = self._loaded[key] = load(name, options, folder, self._limits)
        return found

    def _job(
        self, loaded: Loaded, response: str, pickled: bytes, reference: Any, task: Task, key: bytes | None
    ) -> Job:
        job = loaded.job(response.encode("utf-8", "surrogatepass"), pickled, task)
        job.key, job.make_key = key, lambda part: self._key(loaded, part, reference, task)
        return job

    async def _in_worker(self, loaded: Loaded, reference: Any, make_job: Callable[[bytes], Job]) -> Judgement:
        """`make_job` is given the pickled reference."""
        try:
            pickled = pickle.dumps(reference)
        except Exception as error:  # whatever a custom reference raises when it is pickled
            return Judgement(
                fault(f"the reference cannot be sent to a worker: {type(error).__name__}: {error}")
            )
        job = make_job(pickled)
        try:
            if (what := loaded.preparation(reference)) is not None:
                job.num_prepared = await self._template.prepare(job.preparation(pickle.dumps(what)))
        except WorkerDied as error:
            return Judgement(fault(str(error)))
        first = await self._attempt(job)
        has_failed = first.verdict.outcome is Outcome.FAULT
        # What an older worker holds of earlier responses is not this one's.
        if not (has_failed or first.limit is Limit.MEMORY) or not self._is_open:
            return first
        again = await self._attempt(job, fresh=True)
        return replace(again, faults=(first.verdict,) if has_failed else ())

    async def _attempt(self, job: Job, *, fresh: bool = False) -> Judgement:
        waited = time.perf_counter()
        worker = await self._idle.get()
        self.queue_seconds += time.perf_counter() - waited
        started = time.perf_counter()
        try:
            if worker is not None and fresh:
                await self._template.end(worker)
                worker = None
            # Prepared once: a verifier may name something else each time that it is asked.
            for is_prepared in (False, True):
                is_worn = worker is not None and worker.num_served >= self._recycle_after
                if worker is not None and (is_worn or worker.num_prepared < job.num_prepared):
                    await self._template.end(worker)
                    worker = None
                if worker is None:
                    worker = await self._template.fork()
                found = await self._ask(worker, job, is_prepared=is_prepared)
                if isinstance(found, Judgement):
                    break
                job.num_prepared = await self._template.prepare(found)
            assert isinstance(found, Judgement)
            if worker is not None and not worker.is_alive:
                worker = None
            return found
        except WorkerDied as error:
            if worker is not None:
                self._template.end_soon(worker)
            worker = None
            return Judgement(replace(fault(str(error)), seconds=time.perf_counter() - started))
        except asyncio.CancelledError:
            # The worker may be in the middle of it: it cannot be given to anyone else.
            if worker is not None:
                self._template.end_soon(worker)
            worker = None
            raise
        finally:
            self._idle.put_nowait(worker)

    async def _ask(self, worker: VerifierWorker, job: Job, *, is_prepared: bool) -> Judgement | bytes:
        """One verification by one worker, which is ended when it is late; or what is to be prepared first."""
        started = time.perf_counter()
        try:
            if not job.is_built_in:
                reply = await ready(worker, job)
                if reply.verdict is not None:
                    return Judgement(reply.verdict)
                payload = job.preparation(reply.found)
                if reply.found and not is_prepared and not self._template.is_prepared(payload, worker):
                    return payload
            return await within_limits(worker, job, self._answer(worker, job))
        except Late as late:
            self.num_killed += 1
            await self._template.end(worker)
            return late.judgement
        except (OSError, asyncio.IncompleteReadError):
            found = death(await self._template.end(worker), worker, job.limits)
            return replace(found, verdict=replace(found.verdict, seconds=time.perf_counter() - started))

    async def _answer(self, worker: VerifierWorker, job: Job) -> Judgement:
        if job.has_key:
            started = time.perf_counter()
            reply = await worker.ask(job.request(KEY))
            if reply.verdict is not None:
                return judged(reply)
            job.key = job.make_key(reply.found or None)
            if (known := self._known(job.key, started)) is not None:
                return known
        worker.num_served += 1
        judgement = judged(await worker.ask(job.request(VERIFY_GROUP if job.is_group else VERIFY)))
        self._keep(job.key, judgement)
        return judgement


async def _close(verifier: ClosableVerifier, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await in_thread(verifier.close)
    except TimeoutError:
        log.warning(
            "close() of %s takes more than %g s: it is left behind.", type(verifier).__name__, seconds
        )
