"""A judgement of a pool on one response, or on a group: the verdicts, the attempts that failed before them,
and the limit that the response met.

The rule, for every verifier: a response may cost its limit. Time, memory and recursion that it uses up make
it WRONG, since no response may cause a FAULT. Whatever else keeps a worker from its verdict is the verifier's
and a FAULT with its cause: it raises, it exits, it crashes, it does not load. Evidence decides, not a guess:

    what happened                                        verdict
    late, after half of the limit or more on the CPU     WRONG, the pool killed it for its time
    late, without the CPU                                FAULT: it slept, or the machine is overloaded
    MemoryError in cache_key or verify                   WRONG, at the limit on the address space
    RecursionError in verify                             WRONG; in cache_key or verify_fast, verify decides
    died of a signal with half of the memory limit       WRONG: the kernel, or C code without memory, ended it
      or more resident
    died of any other signal: a stack overflow past      FAULT, with the signal and the frames that the
      Python's limit, a bug in C code, a kill from       process had
      outside
    ended with an exit code, 0 included                  FAULT, with the code
    raised anything else                                 FAULT, with the traceback
    late or failed while it loads or reads the gold      FAULT: no response is to blame for that

A fault, and a limit on memory that an older worker met, is tried once more in a fresh worker. The built-in
verifiers obey the rule too: they bound recursion, sizes and memory beforehand, so that one that crashes all
the same has a defect of ours, which leaves the group and alarms.

A group-wise verifier judges all responses to a task at once: it has `verify_group` or `verify_group_async`
(`verifiers.verifier.GroupVerifier`). A run asks it when all responses of a group are there. One response
alone, as in evaluation, is a group of one, unless the verifier has `verify` for it too; a verifier that
compares says `min_responses = 2` and is refused where responses come alone. Which response made it fail is
not known, so whatever keeps it from its answer, limits on time and memory included, is a FAULT of the whole
group; a FAULT among its verdicts is that response's."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from verifiers.storable import storable_verdict
from verifiers.task import GROUP_METHODS
from verifiers.verdict import Outcome, Verdict, as_fields, fault, from_fields


class Limit(StrEnum):
    """Resources that a response may use up."""

    TIME = "time"
    MEMORY = "memory"
    RECURSION = "recursion"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    faults: tuple[Verdict, ...] = ()
    """Faults of the attempts before the one that gave the verdict, in order."""
    limit: Limit | None = None
    """The one that the response met, where that is why it is WRONG."""
    group: bytes = b""
    """Verdicts on all responses of a group, packed by `groups.as_json`. `verdict` is then a fault where all
    of them are, and says nothing otherwise."""


@dataclass(frozen=True, slots=True)
class GroupJudgement:
    """A judgement on all responses of a group."""

    verdicts: tuple[Verdict, ...]
    """In the order of the responses. `seconds` of each is its share of the group's."""
    faults: tuple[Verdict, ...] = ()
    """Faults of the whole group in the attempts before the one that gave the verdicts, in order."""

    def has_failed(self) -> bool:
        """Whether no response has a verdict."""
        return all_faults(self.verdicts)


def is_group_wise(verifier: object) -> bool:
    """Whether it judges a group at once."""
    return any(callable(getattr(verifier, method, None)) for method in GROUP_METHODS)


def judges_alone(verifier: object) -> bool:
    """Whether it has `verify`, for one response."""
    return callable(getattr(verifier, "verify", None))


def min_responses(verifier: object) -> int:
    """The fewest responses that it judges together. Raises ValueError for an attribute that is no such
    number."""
    said = getattr(verifier, "min_responses", 1) if is_group_wise(verifier) else 1
    if isinstance(said, bool) or not isinstance(said, int) or said < 1:
        raise ValueError(f"min_responses of the verifier is {said!r}, expected a whole number of at least 1.")
    return said


def why_not_alone(name: str, verifier: object) -> str | None:
    """Why it cannot judge one response alone, as a sentence; None where it can."""
    least = min_responses(verifier)
    if least == 1 or judges_alone(verifier):
        return None
    return f'the verifier "{name}" compares at least {least} responses to one task: it cannot judge one alone'


def all_faults(verdicts: Sequence[Verdict]) -> bool:
    return all(verdict.outcome is Outcome.FAULT for verdict in verdicts)


def checked_verdicts(found: object, num_responses: int) -> list[Verdict]:
    """The list that `verify_group` returned, made storable; faults for all where it is something else."""
    if isinstance(found, str | bytes) or not isinstance(found, Sequence):
        problem = f"verify_group returned {type(found).__name__}, expected a list of verdicts"
    elif len(found) != num_responses:
        problem = f"verify_group returned {len(found)} verdicts for {num_responses} responses"
    else:
        return [storable_verdict(verdict) for verdict in found]
    return [fault(problem)] * num_responses


def as_json(verdicts: Sequence[Verdict]) -> bytes:
    """Storable verdicts, for `from_json`: a worker runs code that must not choose what is unpickled."""
    return json.dumps([as_fields(verdict) for verdict in verdicts]).encode()


def from_json(packed: bytes) -> list[Verdict]:
    return [from_fields(fields) for fields in json.loads(packed)]


def of_worker(judged: Judgement, num_responses: int) -> GroupJudgement:
    """The judgement of a worker, whose verdict is one for all responses where it holds no group."""
    verdicts, verdict = from_json(judged.group) if judged.group else [], judged.verdict
    if not verdicts:
        # A limit that all responses met together is no verdict on any of them.
        if verdict.outcome is not Outcome.FAULT:
            verdict = replace(fault(f"{verdict.detail} (all {num_responses} responses)"), trace=verdict.trace)
        verdicts = [verdict] * num_responses
    return shared(verdicts, judged.verdict.seconds, judged.faults)


def shared(verdicts: Sequence[Verdict], seconds: float, faults: Sequence[Verdict] = ()) -> GroupJudgement:
    """`seconds`: those of the whole group."""
    share = seconds / max(1, len(verdicts))
    return GroupJudgement(tuple(replace(verdict, seconds=share) for verdict in verdicts), tuple(faults))
