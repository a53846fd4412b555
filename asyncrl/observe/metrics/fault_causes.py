"""Verifier faults grouped by cause (`cause_of`).

Pure functions of the verdicts in the journal.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from asyncrl.journal.rows import RetriedFault
from asyncrl.system.faults_in_a_row import cause_of

MOST_CAUSES = 8
"""Rows of a table; the rest is summed up in one."""


@dataclass(frozen=True, slots=True)
class FaultCause:
    cause: str
    num_verdicts: int
    task_id: str
    """Task of the first verdict."""
    detail: str
    """Detail of the first verdict."""
    num_retried: int = 0
    """Further faults of this cause, whose retry gave a verdict."""


def group_faults(
    faults: Iterable[tuple[str, str, int]], retried: Iterable[RetriedFault] = ()
) -> list[FaultCause]:
    """The causes of (task id, detail, number of verdicts), and of faults whose retry gave a verdict: the most
    frequent first."""
    found: dict[str, FaultCause] = {}
    for task_id, detail, count in faults:
        cause = cause_of(detail)
        first = found.get(cause, FaultCause(cause, 0, task_id, detail))
        found[cause] = FaultCause(cause, first.num_verdicts + count, first.task_id, first.detail)
    for row in retried:
        first = found.get(row["cause"], FaultCause(row["cause"], 0, row["task_id"], row["detail"]))
        found[row["cause"]] = replace(first, num_retried=first.num_retried + row["num_faults"])
    ordered = sorted(found.values(), key=lambda each: (-each.num_verdicts, -each.num_retried, each.cause))
    if len(ordered) <= MOST_CAUSES:
        return ordered
    kept, rest = ordered[:MOST_CAUSES], ordered[MOST_CAUSES:]
    total, retries = sum(each.num_verdicts for each in rest), sum(each.num_retried for each in rest)
    words = f"{len(rest)} other causes"
    return [*kept, FaultCause(words, total, rest[0].task_id, rest[0].detail, retries)]
