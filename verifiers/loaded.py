"""A verifier as the pool knows it: in the caller's process, and as a specification for the workers.

In the caller only built-in verifiers run anything (the fast path, the key in the cache, what is to be
prepared); those of the user's do all of it in the worker."""

import pickle
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verifiers.attempt import Job, Limits
from verifiers.cache import part_digest
from verifiers.groups import is_group_wise, judges_alone, min_responses
from verifiers.own import is_built_in
from verifiers.registry import build_verifier, check_options
from verifiers.task import Task, takes_task, with_task
from verifiers.verdict import Verdict
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
