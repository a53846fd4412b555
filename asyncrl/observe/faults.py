"""Verifier faults grouped by cause: the exception and its place, or the message without its numbers.

Pure functions of the verdicts in the journal.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_CAUSES = 8
"""Rows of a table; the rest is summed up in one."""
_RAISED = re.compile(r"the verifier raised (\w+): ")
_PLACE = re.compile(r"\((\S[^()]*:\d+)\)\Z")
_CHANGING = re.compile(r"\d+(?:\.\d+)?|0x[0-9a-f]+|'[^']*'|\"[^\"]*\"")
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class FaultCause:
    cause: str
    num_verdicts: int
    task_id: str
    """Task of the first verdict."""
    detail: str
    """Detail of the first verdict."""


def cause_of(detail: str) -> str:
    """A text that is equal for faults of the same cause, whatever the response."""
    # Search from the last bracket: a message may hold thousands of them.
    raised, place = _RAISED.search(detail), _PLACE.match(detail, max(0, detail.rfind("(")))
    if raised is not None and place is not None:
        return f"{raised.group(1)} at {place.group(1)}"
    words = " ".join(_CHANGING.sub("N", detail).split())
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."


def group_faults(faults: Iterable[tuple[str, str, int]]) -> list[FaultCause]:
    """The causes of (task id, detail, number of verdicts), the most frequent first."""
    found: dict[str, FaultCause] = {}
    for task_id, detail, count in faults:
        cause = cause_of(detail)
        first = found.get(cause, FaultCause(cause, 0, task_id, detail))
        found[cause] = FaultCause(cause, first.num_verdicts + count, first.task_id, first.detail)
    ordered = sorted(found.values(), key=lambda each: (-each.num_verdicts, each.cause))
    if len(ordered) <= MOST_CAUSES:
        return ordered
    kept, rest = ordered[:MOST_CAUSES], ordered[MOST_CAUSES:]
    total = sum(each.num_verdicts for each in rest)
    return [*kept, FaultCause(f"{len(rest)} other causes", total, rest[0].task_id, rest[0].detail)]
