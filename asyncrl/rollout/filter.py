"""Which groups are sampled more of or left out: adaptive groups, oversampling, dynamic sampling."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from asyncrl.algorithms.advantages import Advantage, GroupRewards, has_signal
from asyncrl.algorithms.turns import line_advantages
from asyncrl.recipe import Algorithm
from asyncrl.records import PolicyVersion, Score, Task, Trajectory
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.complete import naming
from asyncrl.rollout.credits import line_rewards
from asyncrl.tasks.pass_rates import PassRates


def group_signal(advantage: Advantage, algorithm: Algorithm) -> Callable[[Group], bool]:
    """Whether a group has a gradient: whether the advantage of its raw correctness is not 0 throughout.

    Correctness in the place of the reward, because shaping breaks ties that mean nothing.
    """

    def decide(group: Group) -> bool:
        correctness, lengths = list[float](), list[int]()
        judged: list[tuple[Trajectory, Score]] = []
        greedy: float | None = None
        for trajectory in group.trajectories:
            score = group.scores.get(trajectory.trajectory_id)
            if score is None or score.correctness is None:
                continue
            if trajectory.is_greedy:
                greedy = score.correctness
            else:
                judged.append((trajectory, score))
                correctness.append(score.correctness)
                lengths.append(trajectory.num_sampled_in_all())
        min_size = algorithm.min_group_size()
        if len(correctness) < min_size or (algorithm.needs_greedy() and greedy is None):
            return False
        with naming(group):
            if any(score.branches for score in group.scores.values()):
                lines = [line_rewards(each, _raw(score), has_credits=False) for each, score in judged]
                found = line_advantages(lines, advantage, algorithm, greedy_reward=greedy)
                return algorithm.always_teaches() or any(map(any, found))
            known = GroupRewards(correctness, lengths, greedy, min_size=min_size)
            return has_signal(known, advantage, algorithm)

    return decide


def _raw(score: Score) -> Score:
    """The score with correctness in the place of the reward."""
    branches = {name: replace(each, reward=each.correctness) for name, each in score.branches.items()}
    return replace(score, reward=score.correctness, branches=branches)


@dataclass(slots=True)
class SignalFilter:
    """Judges by raw correctness, never by the shaped reward."""

    is_on: bool
    max_in_a_row: int
    has_signal: Callable[[Group], bool]
    num_in_a_row: int = 0

    def lets_through(self, group: Group) -> bool:
        """Called once per group, when its verdicts are there."""
        if not self.is_on or self.has_signal(group) or self.num_in_a_row >= self.max_in_a_row:
            self.num_in_a_row = 0
            return True
        self.num_in_a_row += 1
        return False


# A round generates `oversampling` times the groups of a batch. It is over as soon as a batch is ready: then
# nothing is admitted and nothing streams until the trainer takes it; what is left keeps its prefix in the
# queue and resumes with the newest weights, before anything new is admitted. When the trainer already waits,
# the take comes at once and nothing is parked. A trajectory that waits for a tool holds no slot and is not
# parked: its answer is recorded, and its next turn waits as all do.
#
# The staleness bound holds as it is: parking only admits less than `ReplayQueue.can_admit` allows, and a
# parked group stays live, so `policy.choose` counts it at its deadline as before. Nor can parking hold a
# batch up: a round is over only while `choose` has a batch, that is, while every group that is due is ready
# itself.
@dataclass(slots=True)
class Oversampling:
    """One per run; off when `oversampling` is None."""

    queue: ReplayQueue
    oversampling: float | None
    _seen: tuple[int, ...] = ()
    _is_over: bool = field(default=False)

    def is_over(self) -> bool:
        """Whether the batch after the last one taken is ready, and the rest is to wait."""
        if self.oversampling is None:
            return False
        queue = self.queue
        seen = (queue.num_steps_taken, queue.num_admitted, queue.num_dropped, queue.num_ready)
        if seen != self._seen:
            self._seen, self._is_over = seen, queue.choose(queue.num_steps_taken) is not None
        return self._is_over

    def may_admit(self, num_waiting: int) -> bool:
        """Whether a round has room for a new group while `num_waiting` older ones wait for a server."""
        if self.oversampling is None:
            return True
        limit = math.ceil(self.oversampling * self.queue.settings.groups_per_batch)
        return not num_waiting and len(self.queue.live) < limit and not self.is_over()


@dataclass(frozen=True, slots=True)
class AdaptiveGroups:
    """Decides which pilots get the rest of their group, once all of the pilot is graded.

    A group is extended where its pilot has an advantage other than 0 or is mixed, where none of it has a
    verdict, where scores lie between right and wrong, and where the chance that the whole group becomes mixed
    is `min_chance` at least, by the pilot and the record of the row (`PassRates`). Else the pilot is the
    group, and replay.drops_no_signal decides as of any group without a signal.

    That changes the weight of a row, not the direction of its gradient (docs/algorithms.md has the formula).
    The journal holds the decision as the trajectories of the group; one that a crash comes before is made
    again.
    """

    num_samples: int
    """Trajectories of a whole group."""
    min_chance: float
    rates: PassRates
    row_of: Callable[[Task], int | None]
    version: Callable[[], PolicyVersion]
    """The trainer's."""
    decided: Callable[[Group, bool], None] = lambda group, is_extended: None
    """Told of each decision about a pilot."""

    def extends(self, group: Group, teaches: bool) -> bool:
        """Whether `group`, all of which is graded, gets the rest of its trajectories. `teaches`: one of its
        advantages is not 0."""
        num_more = self.num_samples - len(group.trajectories)
        if num_more <= 0:
            return False
        is_extended = teaches or self._is_worth(group, num_more)
        self.decided(group, is_extended)
        return is_extended

    def _is_worth(self, group: Group, num_more: int) -> bool:
        scores = [s.correctness for s in group.scores.values() if s.correctness is not None]
        if set(scores) not in ({0.0}, {1.0}):
            return True
        num_right = sum(scores)
        chance = self.rates.mixed_chance(
            self.row_of(group.task),
            self.version(),
            num_right=num_right,
            num_wrong=len(scores) - num_right,
            num_more=num_more,
        )
        return chance >= self.min_chance
