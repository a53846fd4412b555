"""One verification: the verifier as the pool knows it; its steps in one worker, its deadline, and what a
death of the worker means; verifiers that wait for a sandbox or a server instead.

Does not choose the worker; the rule for verdicts is that of `verifiers.judgement`."""

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandbox import frames
from verifiers.cache import part_digest
from verifiers.judgement import (
    GroupJudgement,
    Judgement,
    Limit,
    all_faults,
    checked_verdicts,
    is_group_wise,
    judges_alone,
    min_responses,
    shared,
)
from verifiers.own import is_built_in, parsed
from verifiers.registry import build_verifier, check_options
from verifiers.storable import fault_of, storable_verdict
from verifiers.task import Task, takes_task, with_task, with_tasks
from verifiers.template import Ended, Worker
from verifiers.verdict import Outcome, Verdict, fault, from_fields, over_limit, too_deep
from verifiers.verifier import (
    AsyncVerifier,
    CacheableVerifier,
    FastVerifier,
    LimitedVerifier,
    PreparedVerifier,
    Verifier,
)
from verifiers.worker import READY


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer to one step."""

    verdict: Verdict | None
    limit: Limit | None
    found: bytes
    """The result of the step; empty where there is none, or a verdict instead."""


class VerifierWorker(Worker):
    num_served = 0

    async def ask(self, request: bytes) -> Reply:
        """The reply to a packed message. Raises as `exchange`."""
        header, (found,) = await self.exchange(request)
        fields, limit = header["verdict"], header["limit"]
        verdict = None if fields is None else from_fields(fields)
        return Reply(verdict, None if limit is None else Limit(limit), found)


_STARVED_SHARE = 0.5
_MAX_EXTENSIONS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    """Time limit of the response."""
    is_own: bool
    """The verifier keeps them itself: late is a fault, and its memory is not limited."""
    load_seconds: float
    """To load the verifier and to read the gold."""
    memory_bytes: int


@dataclass(slots=True)
class Job:
    """A request to a worker."""

    specification: bytes
    response: bytes
    reference: bytes
    """Pickled."""
    task: bytes
    """Pickled; empty for a verifier that does not take it."""
    limits: Limits
    is_built_in: bool
    """All of its steps that are not `verify` were done by the caller."""
    has_key: bool
    """The worker is asked for the key in the cache."""
    key: bytes | None = None
    """Key of its verdict in the cache."""
    make_key: Callable[[bytes | None], bytes | None] = lambda part: None
    """The key, by the digest of what decides of the response."""
    is_group: bool = False
    """Response and task are pickled lists of them."""
    num_prepared: int = 0
    """Preparations that the worker must have been forked after."""
    _packed: dict[str, bytes] = field(default_factory=dict)

    def request(self, step: str) -> bytes:
        if step not in self._packed:
            response, task = (b"", b"") if step == READY else (self.response, self.task)
            parts = [self.specification, response, self.reference, task]
            self._packed[step] = frames.pack({"step": step}, parts)
        return self._packed[step]

    def preparation(self, what: bytes) -> bytes:
        """For `Template.prepare`; `what` is pickled."""
        return pickle.dumps((self.specification, what))


class Late(Exception):
    """The worker has not answered within its limit, and must be ended; holds what that means."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.verdict.detail)
        self.judgement = judgement


async def ready(worker: VerifierWorker, job: Job) -> Reply:
    """The worker has loaded the verifier and read the gold. Raises Late, and OSError or IncompleteReadError
    when it died."""
    limit = job.limits.load_seconds
    try:
        return await asyncio.wait_for(worker.ask(job.request(READY)), limit)
    except TimeoutError:
        detail = f"loading the verifier or reading the gold takes more than {limit:g} s"
        raise Late(Judgement(replace(fault(detail), seconds=limit))) from None


async def within_limits(worker: VerifierWorker, job: Job, work: Any) -> Judgement:
    """Awaits `work`, a coroutine of the worker, under the limits of the job. Raises as `ready`."""
    limit = job.limits.seconds
    started = time.perf_counter()
    cpu_before = worker.cpu_seconds()
    worker.note_memory()
    reply: asyncio.Future[Judgement] = asyncio.ensure_future(work)
    try:
        for _ in range(1 + _MAX_EXTENSIONS):
            done, _ = await asyncio.wait({reply}, timeout=limit)
            if done:
                return reply.result()
            used = worker.cpu_seconds() - cpu_before
            if job.limits.is_own or used >= limit * _STARVED_SHARE:
                break
    finally:
        if not reply.done():
            reply.cancel()
    used = worker.cpu_seconds() - cpu_before
    raise Late(_late(job, seconds=time.perf_counter() - started, cpu_seconds=used))


def _late(job: Job, *, seconds: float, cpu_seconds: float) -> Judgement:
    limit = job.limits.seconds
    if job.limits.is_own:
        return Judgement(replace(fault(f"the verifier did not answer in {limit:g} s"), seconds=seconds))
    if cpu_seconds >= limit * _STARVED_SHARE:
        detail = f"timeout: verifying this response took more than {limit:g} s"
        return Judgement(replace(over_limit(detail), seconds=seconds), limit=Limit.TIME)
    detail = (
        f"timeout: no answer in {seconds:.1f} s with {cpu_seconds:.2f} s of CPU time: the verifier waits or "
        f"the machine is overloaded"
    )
    return Judgement(replace(fault(detail), seconds=seconds))


def judged(reply: Reply) -> Judgement:
    """The judgement in a reply with a verdict."""
    assert reply.verdict is not None
    return Judgement(reply.verdict, limit=reply.limit, group=reply.found)


def death(ended: Ended | None, worker: VerifierWorker, limits: Limits) -> Judgement:
    """The judgement on a worker that ended without an answer."""
    if ended is None:
        return Judgement(fault("the worker is gone"))
    if ended.exit_code is not None:
        return Judgement(fault(f"the worker ended by itself, with exit code {ended.exit_code}"))
    name, before = ended.signal_name, worker.resident_bytes
    if not limits.is_own and before is not None and ended.has_used_memory(before, limits.memory_bytes):
        detail = (
            f"memory limit: {name} ended the worker when it had taken {ended.peak_bytes} of "
            f"{limits.memory_bytes} bytes"
        )
        return Judgement(over_limit(detail), limit=Limit.MEMORY)
    if not ended.frames:
        return Judgement(fault(f"the worker was ended by {name}, which the pool had not sent"))
    return Judgement(replace(fault(f"the worker crashed: {name}"), trace=ended.frames))


class Loaded:
    def __init__(self, verifier: Verifier, specification: bytes, limits: Limits) -> None:
        """`limits`: the pool's."""
        self.verifier = verifier
        self.specification = specification
        self.is_built_in = is_built_in(verifier)
        self.takes_task = takes_task(verifier)
        self.fast: Callable[[str, Any, Task], Verdict | None] | None = None
        if isinstance(verifier, FastVerifier) and self.is_built_in:
            self.fast = with_task(verifier.verify_fast)
        self.is_group_wise = is_group_wise(verifier)
        self.judges_alone = judges_alone(verifier)
        self.min_responses = min_responses(verifier)
        self.caches_groups = getattr(verifier, "caches_groups", False) is True
        self.group_waits: Callable[..., Awaitable[object]] | None = None
        if callable(asked := getattr(verifier, "verify_group_async", None)):
            self.group_waits = asked
        self.waits = verifier if isinstance(verifier, AsyncVerifier) else None
        self._cache_key: Callable[[str, Any, Task], Hashable | None] | None = None
        if isinstance(verifier, CacheableVerifier):
            self._cache_key = with_task(verifier.cache_key)
        self._prepared = verifier if isinstance(verifier, PreparedVerifier) and self.is_built_in else None
        own_limit = verifier.pool_timeout_seconds if isinstance(verifier, LimitedVerifier) else None
        self._limits = limits if own_limit is None else replace(limits, seconds=own_limit, is_own=True)

    def job(self, response: bytes, reference: bytes, task: Task) -> Job:
        """`reference` is pickled."""
        has_key = self._cache_key is not None and not self.is_built_in
        told = pickle.dumps(task) if self.takes_task else b""
        return Job(self.specification, response, reference, told, self._limits, self.is_built_in, has_key)

    def group_job(self, responses: Sequence[str], reference: bytes, tasks: Sequence[Task]) -> Job:
        """`reference` is pickled. The time limit is that of as many verifications as there are responses."""
        limits, told = self._limits, pickle.dumps(list(tasks)) if self.takes_task else b""
        if not limits.is_own:
            limits = replace(limits, seconds=limits.seconds * len(responses))
        packed = pickle.dumps(list(responses))
        return Job(
            self.specification, packed, reference, told, limits, self.is_built_in, False, is_group=True
        )

    def preparation(self, reference: Any) -> Hashable | None:
        """The preparation that a built-in verifier needs."""
        return None if self._prepared is None else self._prepared.preparation(reference)

    def part_of(self, response: str, reference: Any, task: Task) -> bytes | None:
        """The digest of what decides of the response; None: it is not to be cached."""
        part = None if self._cache_key is None else self._cache_key(response, reference, task)
        return None if part is None else part_digest(part)


def key_of_options(name: str, options: Mapping[str, object], folder: Path | None) -> Hashable:
    # repr tells 1 from True and 1.0, which as keys would be equal.
    return name, repr(sorted(options.items())), folder


def load(name: str, options: Mapping[str, object], folder: Path | None, limits: Limits) -> Loaded:
    """Raises ValueError where there is no such verifier or it does not take the options."""
    plain = check_options(name, options, folder=folder)
    verifier = build_verifier(name, plain, folder=folder)
    specification = pickle.dumps((name, plain, str(folder) if folder else None))
    return Loaded(verifier, specification, limits)


async def begun(loaded: Loaded, response: str, reference: Any, task: Task) -> tuple[Any, bytes | None]:
    """The reference, and the digest of what decides of the response."""
    found = parsed(loaded.verifier, reference)
    try:
        return found, loaded.part_of(response, found, task)
    except RecursionError:
        return found, None


async def waited(verifier: AsyncVerifier, response: str, reference: Any, task: Task) -> Judgement:
    """The judgement on one response."""
    started = time.perf_counter()
    faults: list[Verdict] = []
    ask = with_task(verifier.verify_async)
    while True:
        limit = None
        try:
            verdict = storable_verdict(await ask(response, reference, task))
        except RecursionError:
            verdict, limit = too_deep(), Limit.RECURSION
        # The boundary: a verifier that raises has failed, whatever it raises.
        except (Exception, SystemExit) as error:
            verdict = fault_of(error)
        if verdict.outcome is not Outcome.FAULT or faults:
            verdict = replace(verdict, seconds=time.perf_counter() - started)
            return Judgement(verdict, tuple(faults), limit)
        faults.append(verdict)


async def waited_group(
    verify: Callable[..., Awaitable[object]],
    verifier: Any,
    responses: Sequence[str],
    reference: Any,
    tasks: Sequence[Task],
) -> GroupJudgement:
    """The judgement on a group by `verify`, a method of the verifier; tried again where all are faults."""
    started = time.perf_counter()
    faults: list[Verdict] = []
    ask = with_tasks(verify)
    while True:
        try:
            found = parsed(verifier, reference)
            verdicts = checked_verdicts(await ask(list(responses), found, list(tasks)), len(responses))
        # The boundary: a verifier that raises has failed, whatever it raises.
        except (Exception, SystemExit) as error:
            verdicts = [fault_of(error)] * len(responses)
        if faults or not all_faults(verdicts):
            return shared(verdicts, time.perf_counter() - started, faults)
        faults.append(verdicts[0])
