"""Faults grouped by cause, and groups that end untrained while a step waits for its batch."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asyncrl.journal.rows import RetriedFault
from asyncrl.observe.alarms.no_correct import ZeroReward
from asyncrl.records import DropReason
from asyncrl.replay.group import Group
from asyncrl.system.plugins import cause_of

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


# Dynamic sampling may drop thousands of groups before a batch is full. No step ends meanwhile, so the live
# line and the alarms, which hear of steps, would say nothing.
FIRST_TOLD_BATCHES = 4
"""Dropped groups are told first when they would fill this many batches, then whenever they have doubled: an
ordinary step of dynamic sampling drops one or two batches' worth."""
ALL_WRONG, ALL_RIGHT = "all_wrong", "all_right"
COLUMNS = (*(reason.value for reason in DropReason), ALL_WRONG, ALL_RIGHT)


class DroppedGroups:
    """Hears how each group ends its rollout, and which batch was taken."""

    def __init__(
        self, tell: Callable[[dict[str, Any]], None], zero_reward: ZeroReward, *, groups_per_batch: int
    ) -> None:
        """`tell` gets `step`, which waits, `num_dropped`, the groups since the last batch, and counts of them
        by reason; of those without a signal, how many were all wrong and how many all right."""
        self._tell = tell
        self._zero_reward = zero_reward
        self._first_told = self._next = FIRST_TOLD_BATCHES * groups_per_batch
        self._step = 1
        self._counts: Counter[str] = Counter()

    def taken(self, groups: Sequence[Group], step: int) -> None:
        """The new groups of the batch of `step` left the queue."""
        self._zero_reward.taken(groups, step)
        self._step = step + 1
        self._next = self._first_told
        self._counts.clear()

    def ended(self, group: Group, reason: DropReason | None) -> None:
        """The group is ready (None) or dropped."""
        self._zero_reward.ended(group, self._step, is_dropped=reason is not None)
        if reason is None:
            return
        self._counts["num_dropped"] += 1
        self._counts[reason] += 1
        if reason is DropReason.NO_SIGNAL:
            found = {score.correctness for score in group.scores.values() if score.correctness is not None}
            self._counts[ALL_WRONG] += found == {0.0}
            self._counts[ALL_RIGHT] += found == {1.0}
        if self._counts["num_dropped"] >= self._next:
            self._next *= 2
            names = ("num_dropped", *COLUMNS)
            self._tell({"step": self._step, **{name: self._counts[name] for name in names}})
