"""News of groups while no step ends: the alarm no_correct, and groups that are dropped.

A reward that stays 0 teaches nothing, and the curve alone cannot tell a model that is too weak from one that
never writes a box or whose answers are all cut off. Dynamic sampling may drop thousands of groups before a
batch is full; the live line and the other alarms, which hear of steps, would say nothing meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from asyncrl.observe.alarms.rule import NO_CORRECT, Alarm, Finding
from asyncrl.records import DropReason, Finish, Score, Trajectory
from asyncrl.replay.group import Group
from asyncrl.system.words import as_percent

NUM_EXAMPLES = 3
TAIL_TOKENS = 24
TAIL_CHARACTERS = 60
LOOKED_FOR = {
    "math": "the last closed \\boxed{...} after the last </think>",
    "numeric": "a number where verifying.options says the answer stands",
    "choice": "the letter of a choice where verifying.options says the answer stands",
    "exact": "the text of the answer and nothing else, where verifying.options says it stands",
    "code": "the last fenced block of code",
}


class ZeroReward:
    """Hears of each batch's groups, and of those that dynamic sampling drops; tells once, and again only
    after something was correct."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        tell: Callable[[Alarm], None],
        *,
        max_new_tokens: int,
        num_steps: int | None,
        groups_per_batch: int,
    ) -> None:
        """`tell` gets each alarm. `num_steps` in a row without a single correct response are told of; None:
        never. As many groups as a batch holds that are dropped in a row count as a step."""
        self._decode = decode
        self._tell = tell
        self._max_new_tokens = max_new_tokens
        self._limit = num_steps
        self._num_steps = 0
        self._is_told = False
        self._reasons: Counter[str] = Counter()
        self._num_cut = 0
        self._groups_per_batch = groups_per_batch
        self._dropped: list[Group] = []
        """Since the last of them counted as a step."""
        self._num_dropped_steps = 0

    def ended(self, group: Group, step: int, *, is_dropped: bool) -> None:
        """A group is ready or dropped while `step` waits for its batch."""
        if self._limit is None:
            return
        if not is_dropped:
            # What is ready tells by its batch, unless something in it is correct: that ends the row.
            if any(score.correctness for score in group.scores.values()):
                self._dropped.clear()
            return
        self._dropped.append(group)
        if len(self._dropped) == self._groups_per_batch:
            self._num_dropped_steps += 1
            self.taken(self._dropped, step)
            self._dropped = []

    def taken(self, groups: Iterable[Group], step: int) -> None:
        """The new groups of the batch of `step`."""
        if self._limit is None:
            return
        groups = list(groups)
        graded = [sample for group in groups for sample in group.graded_samples()]
        if any(score.correctness for _, score in graded):
            self._num_steps, self._num_cut, self._num_dropped_steps, self._is_told = 0, 0, 0, False
            self._reasons.clear()
            return
        self._num_steps += 1
        self._reasons.update(_reason(score) for _, score in graded)
        self._num_cut += sum(trajectory.finish is Finish.LENGTH for trajectory, _ in graded)
        # A step without anything graded has no examples: the alarm waits for the next one.
        if self._num_steps >= self._limit and graded and not self._is_told:
            self._is_told = True
            names = dict.fromkeys(group.task.verifier.name for group in groups)
            words = self._words(list(names), [trajectory for trajectory, _ in graded])
            self._tell(Alarm(*NO_CORRECT, step, Finding(self._num_steps, self._limit, words)))

    def _words(self, verifiers: list[str], trajectories: list[Trajectory]) -> str:
        total = self._reasons.total()
        reasons = ", ".join(
            f"{as_percent(count / total)} {reason}" for reason, count in self._reasons.most_common(3)
        )
        looked = "".join(
            f' The verifier "{name}" looks for {LOOKED_FOR[name]}.'
            for name in verifiers
            if name in LOOKED_FOR
        )
        ends = ", ".join(
            repr(self._decode(trajectory.answer_tokens()[-TAIL_TOKENS:])[-TAIL_CHARACTERS:])
            for trajectory in trajectories[:NUM_EXAMPLES]
        )
        dropped = ""
        if self._num_dropped_steps:
            num_groups = self._num_dropped_steps * self._groups_per_batch
            dropped = f" ({self._num_dropped_steps} of them {num_groups} groups that were dropped)"
        return (
            f"no response was correct in {self._num_steps} steps{dropped}, so nothing is learned: {reasons}; "
            f"{as_percent(self._num_cut / total)} were cut at rollout.max_new_tokens "
            f"({self._max_new_tokens})."
            f"{looked} The last ones end with {ends}"
        )


def _reason(score: Score) -> str:
    """The outcome; where nothing was found, also why."""
    detail = " ".join(score.detail.split())
    return f"no answer ({detail})" if score.outcome == "no_answer" and detail else score.outcome


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
