"""A verifier as the pool knows it, and verifiers that wait for something else: a sandbox, a server."""

import pickle
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verifiers.attempt import Job, Limits
from verifiers.cache import part_digest
from verifiers.groups import (
    GroupJudgement,
    all_faults,
    checked_verdicts,
    is_group_wise,
    judges_alone,
    min_responses,
    shared,
)
from verifiers.judgement import Judgement, Limit
from verifiers.own import is_built_in, parsed
from verifiers.registry import build_verifier, check_options
from verifiers.storable import fault_of, storable_verdict
from verifiers.task import Task, takes_task, with_task, with_tasks
from verifiers.verdict import Outcome, Verdict, too_deep
from verifiers.verifier import (
    AsyncVerifier,
    CacheableVerifier,
    FastVerifier,
    LimitedVerifier,
    PreparedVerifier,
    Verifier,
)


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

    def key_part(self, response: str, reference: Any, task: Task) -> bytes | None:
        """`part_of`, of a built-in verifier."""
        return self.part_of(response, reference, task) if self.is_built_in else None

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
