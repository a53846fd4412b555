"""From an open group to a ready one: generation, a verdict per trajectory as it ends, and scores of its
tokens beside it where a part asks for some; then advantages."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.algorithms.advantages import Advantage, GroupRewards, group_advantages
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Score, Trajectory, TurnAdvantages
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.generate import GenerationFailed

log = logging.getLogger(__name__)


Graded = tuple[Trajectory, Score]
"""A trajectory and its score, which has a reward."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The advantages of one trajectory."""

    advantage: float
    """That of its first turn, where turns differ."""
    turns: TurnAdvantages = field(default_factory=list)


Worths = Callable[[Sequence[Graded], Graded | None, Advantage, Algorithm], list[Worth]]
"""(sampled, greedy, advantage, algorithm) -> in the order of `sampled`. `greedy` is the baseline where the
advantage has one. Raises InputError as `advantages.group_advantages`."""


def whole_worths(
    sampled: Sequence[Graded], greedy: Graded | None, advantage: Advantage, algorithm: Algorithm
) -> list[Worth]:
    """One for each trajectory as a whole, by its reward: `Worths`."""
    rewards = [score.reward or 0.0 for _, score in sampled]
    lengths = [trajectory.num_sampled_in_all() for trajectory, _ in sampled]
    parts = [score.scores for _, score in sampled]
    baseline = None if greedy is None else greedy[1].reward
    min_size = algorithm.min_group_size()
    group = GroupRewards(rewards, lengths, baseline, parts if any(parts) else (), min_size=min_size)
    return [Worth(each) for each in group_advantages(group, advantage, algorithm)]


@contextlib.contextmanager
def naming(group: Group) -> Iterator[None]:
    """Adds to an InputError which group it is about, and that nothing of the group is lost."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{error} It was asked about group {group.group_id}, of the task {group.task.task_id}. Fix it "
            f"and run the same command again: the run resumes with every response that it has."
        ) from error


class Rollouts(Protocol):
    """The `Generator`, or the `TurnPlayer` on top of it."""

    def run(self, group: Group) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group` as it ends. Raises GenerationFailed."""
        ...


class Verdicts(Protocol):
    """`TrajectoryVerdicts`, or verdicts on more than one trajectory."""

    def are_together(self, group: Group) -> bool:
        """Whether all responses of the group are judged at once, by `judge_together`."""
        ...

    async def judge(self, group: Group, trajectory: Trajectory) -> None:
        """Records a score of the trajectory, which has ended."""
        ...

    async def judge_together(self, group: Group, trajectories: Sequence[Trajectory]) -> None: ...


class Scores(Protocol):
    """Scores of sampled tokens, beside the verdict (`TeacherScoring`)."""

    def lacks(self, group: Group, trajectory: Trajectory) -> bool:
        """Whether the scores of the trajectory are to be asked for, once it is over."""
        ...

    def ask(self, group: Group, trajectory: Trajectory) -> Coroutine[Any, Any, None]:
        """Records them, unless they are refused."""
        ...


@dataclass(frozen=True)
class GroupCompletion:
    """The rollout loop's body."""

    queue: ReplayQueue
    rollouts: Rollouts
    verdicts: Verdicts
    advantage: Advantage
    algorithm: Algorithm
    lets_through: Callable[[Group], bool]
    """Whether the trainer gets a graded group (`SignalFilter`)."""
    worths: Worths = whole_worths
    """The worth of each trajectory of a graded group (`credited_worths`)."""
    revised: Callable[[Trajectory, Worth], Worth] = lambda trajectory, worth: worth
    """From the worth of a trajectory to the one that is trained."""
    ended: Callable[[Group, DropReason | None], None] = lambda group, reason: None
    """Told of each group that becomes ready (None) or is dropped."""
    extends: Callable[[Group, bool], bool] | None = None
    """Whether a graded group, one of whose advantages is not 0 or none, gets more trajectories
    (`AdaptiveGroups`); None where groups are admitted whole."""
    scores: Scores | None = None
    """Scores of what was sampled, beside verdicts: those of a teacher."""
    has_verdicts: bool = True
    """Whether verifiers judge the responses."""

    async def run(self, group: Group) -> None:
        """Leaves the group ready or dropped, or still open when the run is stopping. Raises InputError for an
        advantage of the recipe's own that breaks its contract, with the group open.

        When it is dropped meanwhile (it became too stale), this ends too.
        """
        has_failed = await self._generate(group)
        if self.extends is not None and self._is_graded(group):
            with naming(group):
                worths = [worth for _, worth in self._worths(group)]
            teaches = any(each.advantage or any(value for _, value in each.turns) for each in worths)
            if self.extends(group, teaches):
                self.queue.extend(group)
                has_failed = await self._generate(group)
        if group.state is not GroupState.OPEN:
            self.ended(group, group.reason)
        elif has_failed:
            self._drop(group, DropReason.SERVER)
        elif self._is_graded(group):
            self._make_ready(group)

    def _is_graded(self, group: Group) -> bool:
        """Whether it is open and every trajectory has a verdict."""
        return group.state is GroupState.OPEN and not _without_verdict(group)

    def _lacks_scores(self, group: Group, trajectory: Trajectory) -> bool:
        return self.scores is not None and self.scores.lacks(group, trajectory)

    async def _generate(self, group: Group) -> bool:
        """Generates and grades its trajectories, and has them scored, as far as the run lives; whether
        generation failed."""
        has_failed, are_together = False, self.verdicts.are_together(group)
        async with asyncio.TaskGroup() as verdicts:

            def ask_about(trajectory: Trajectory) -> None:
                if self.scores is not None and self.scores.lacks(group, trajectory):
                    verdicts.create_task(self.scores.ask(group, trajectory))
                # An environment may have given the verdict already.
                if trajectory.trajectory_id not in group.scores and not are_together:
                    verdicts.create_task(self.verdicts.judge(group, trajectory))

            for trajectory in group.trajectories:
                if trajectory.finish is not None:
                    ask_about(trajectory)
            try:
                async for trajectory in self.rollouts.run(group):
                    ask_about(trajectory)
            except GenerationFailed as error:
                log.error("group %d is dropped: %s", group.group_id, error)
                has_failed = True
        left = _without_verdict(group)
        if left and are_together and not has_failed and all(each.finish is not None for each in left):
            await self.verdicts.judge_together(group, left)
        return has_failed

    def _worths(self, group: Group) -> list[tuple[Trajectory, Worth]]:
        """Advantage of each sampled trajectory of a graded group; none where the group is too small."""
        graded = [
            (trajectory, score)
            for trajectory in group.trajectories
            if (score := group.scores[trajectory.trajectory_id]).reward is not None
            # One that the teacher refuses has no place in the loss, and is no baseline for others.
            and not self._lacks_scores(group, trajectory)
        ]
        sampled = [each for each in graded if not each[0].is_greedy]
        greedy = next((each for each in graded if each[0].is_greedy), None)
        min_size = self.algorithm.min_group_size() if self.has_verdicts else 1
        if len(sampled) < min_size or (self.algorithm.needs_greedy() and greedy is None):
            # The others had a fault: one trajectory is no baseline, nor is a greedy one without a verdict.
            return []
        worths = [Worth(0.0)] * len(sampled)
        if self.has_verdicts:
            worths = self.worths(sampled, greedy, self.advantage, self.algorithm)
        pairs = zip(sampled, worths, strict=True)
        return [(trajectory, self.revised(trajectory, worth)) for (trajectory, _), worth in pairs]

    def _make_ready(self, group: Group) -> None:
        # An advantage that fails does so here, while the group is open: it resumes once that is fixed.
        with naming(group):
            worths = self._worths(group)
        if not worths:
            self._drop(group, DropReason.FAULT)
            return
        self.queue.has_signal(group)
        if not self.lets_through(group):
            self._drop(group, DropReason.NO_SIGNAL)
            return
        found = {trajectory.trajectory_id: worth for trajectory, worth in worths}
        self.queue.make_ready(
            group,
            {name: worth.advantage for name, worth in found.items()},
            {name: worth.turns for name, worth in found.items() if worth.turns},
        )
        self.ended(group, None)

    def _drop(self, group: Group, reason: DropReason) -> None:
        self.queue.drop(group, reason)
        self.ended(group, reason)


def _without_verdict(group: Group) -> list[Trajectory]:
    return [each for each in group.trajectories if each.trajectory_id not in group.scores]
