"""The seam that every verifier fills, built in or yours. Owns no behavior.

A verifier is built once per (name, options) and used for many responses, in worker processes. `verify` must
not raise for any response: what a response does wrong is WRONG or NO_ANSWER. Raising, exiting and crashing
mean that the verifier failed (FAULT); time, memory and recursion are the response's (WRONG), see
`verifiers.judgement`. Each method that takes a response and its reference may take the task as well, as a
third parameter, see `verifiers.task`."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

from verifiers.verdict import Verdict


class VerifierUnavailable(Exception):
    """Raise it inside `verify` when something outside the response failed: the verdict becomes
    FAULT, after a retry."""


class Verifier(Protocol):
    def parse_reference(self, raw: object) -> Any:
        """The reference that `verify` takes, from the data row's value; picklable.

        A missing value (golds.py) does not get here, unless the class says `takes_any_gold = True`.
        Raises ValueError with a sentence that says what is wrong with the row."""
        ...

    def verify(self, response: str, reference: Any) -> Verdict:
        """The verdict on one response. Called in a worker process that is killed when it is late."""
        ...


@runtime_checkable
class FastVerifier(Protocol):
    """A verifier that can settle easy responses at once: a built-in one in the caller's process, one of the
    user's in a worker, before `verify`."""

    def verify_fast(self, response: str, reference: Any) -> Verdict | None:
        """The same verdict `verify` would give, in well under a millisecond, or None: it needs the pool."""
        ...


@runtime_checkable
class CacheableVerifier(Protocol):
    """A verifier whose verdict depends on less than the whole response."""

    def cache_key(self, response: str, reference: Any) -> Hashable | None:
        """Responses to one reference with equal keys get equal verdicts; None: do not cache this one.

        Made of strings, bytes, numbers, tuples and frozen sets; any other key is not cached. The reference,
        the options and the verifier's source file are part of the pool's own key: leave them out."""
        ...


@runtime_checkable
class AsyncVerifier(Protocol):
    """A verifier that waits (for a sandbox, a server) rather than computes: a built-in one runs in the
    caller's event loop, one of the user's in another one."""

    async def verify_async(self, response: str, reference: Any) -> Verdict:
        """The verdict on one response. Keeps its own limits; never blocks the loop."""
        ...


class GroupVerifier(Protocol):
    """A verifier that judges all responses to a task at once: it compares them, or ranks them.

    It may have `verify` as well, for a response alone; otherwise that is a group of one.
    `verifiers.judgement` has the rules. Both methods may take the responses' tasks as a third parameter, in
    the same order."""

    min_responses: int = 1
    """The fewest responses that it judges: 2 for one that compares. May be left out."""
    caches_groups: bool = False
    """Whether a group with the same responses, in the same order, may get the same verdicts without being
    judged again. May be left out."""

    def parse_reference(self, raw: object) -> Any:
        """As `Verifier.parse_reference`."""
        ...

    def verify_group(self, responses: Sequence[str], reference: Any) -> Sequence[Verdict]:
        """A verdict for each response, in their order. Called in a worker process that is killed when it is
        late: after the limit of one verification for each response.

        A verifier that waits for a server has `async def verify_group_async` instead, as `AsyncVerifier`."""
        ...


@runtime_checkable
class AnswerVerifier(Protocol):
    """A verifier whose golds are answers as responses give them: two answers are the same where the second is
    correct with the first as its gold. Majority votes (maj@k) count by that."""

    def response_with(self, answer: str) -> str:
        """A response that answers `answer`, which was extracted from another one; cheap."""
        ...


@runtime_checkable
class CheckedVerifier(Protocol):
    """A verifier that needs something of the machine (a sandbox, a server) for any verdict at all."""

    def check_machine(self) -> None:
        """Called once before a run starts. Raises VerifierUnavailable with what is missing."""
        ...


@runtime_checkable
class ClosableVerifier(Protocol):
    """A verifier that holds something (processes, a connection) until it is closed."""

    def close(self) -> None:
        """Gives it back; blocks. A later `verify` begins again."""
        ...


COUNTERS = ("requests", "prompt_tokens", "completion_tokens", "unreadable", "request_seconds")
"""Counters of a verifier that asks a model."""


@runtime_checkable
class MeteredVerifier(Protocol):
    """A verifier that counts what it costs."""

    counters: dict[str, float]
    """Since the start, by the names in COUNTERS."""


@runtime_checkable
class PreparedVerifier(Protocol):
    """A verifier that must load something slow before its first verdict, such as a large library.

    The pool has it loaded once, outside of all time limits, in the process that workers are forked from."""

    def preparation(self, reference: Any) -> Hashable | None:
        """A name for what verdicts on this reference need loaded, None for nothing; cheap, and picklable."""
        ...

    def prepare(self, what: Any) -> None:
        """Loads it, so that `verify` finds it. What it raises, `verify` should raise again."""
        ...


@runtime_checkable
class LimitedVerifier(Protocol):
    """A verifier that keeps its own time limit (it waits for a server or a sandbox) and so needs more than
    the pool's.

    When it is late even so, the response is not to blame: the verdict is FAULT, not WRONG."""

    @property
    def pool_timeout_seconds(self) -> float | None:
        """How long the pool waits for `verify`; None: no limit of its own after all, the pool's holds."""
        ...
