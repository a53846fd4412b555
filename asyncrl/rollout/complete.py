"""From an open group to a ready one: generation, a verdict per trajectory as it ends, then advantages."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from asyncrl.algorithms.advantages import Advantage, GroupRewards, group_advantages
from asyncrl.loops.waits import Blocker, BlockerKind, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.filter import SignalFilter, naming
from asyncrl.rollout.generate import GenerationFailed
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.shaping import Shaping
from verifiers.storable import storable

log = logging.getLogger(__name__)


class Rollouts(Protocol):
    """The `Generator`, or the `TurnPlayer` on top of it."""

    def run(self, group: Group) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group` as it ends. Raises GenerationFailed."""
        ...


@dataclass(frozen=True)
class GroupCompletion:
    """The rollout loop's body."""

    queue: ReplayQueue
    rollouts: Rollouts
    shaping: Shaping
    grader: Grader
    codec: TextCodec
    advantage: Advantage
    algorithm: Algorithm
    waits: Waits
    filter: SignalFilter
    ended: Callable[[Group, DropReason | None], None] = lambda group, reason: None
    """Told of each group that becomes ready (None) or is dropped."""

    async def run(self, group: Group) -> None:
        """Leaves the group ready or dropped, or still open when the run is stopping. Raises InputError for an
        advantage of the recipe's own that breaks its contract, with the group open.

        When it is dropped meanwhile (it became too stale), this ends too.
        """
        has_failed = False
        async with asyncio.TaskGroup() as verdicts:
            for trajectory in group.trajectories:
                if trajectory.finish is not None and trajectory.trajectory_id not in group.scores:
                    verdicts.create_task(self._grade(group, trajectory))
            try:
                async for trajectory in self.rollouts.run(group):
                    # An environment may have given the verdict already.
                    if trajectory.trajectory_id not in group.scores:
                        verdicts.create_task(self._grade(group, trajectory))
            except GenerationFailed as error:
                log.error("group %d is dropped: %s", group.group_id, error)
                has_failed = True
        if group.state is not GroupState.OPEN:
            self.ended(group, group.reason)
        elif has_failed:
            self._drop(group, DropReason.SERVER)
        elif all(trajectory.trajectory_id in group.scores for trajectory in group.trajectories):
            self._make_ready(group)

    async def _grade(self, group: Group, trajectory: Trajectory) -> None:
        text = self.codec.decode(trajectory.answer_tokens())
        verdict = Blocker(BlockerKind.VERDICT, group.task.verifier.name)
        with self.waits.waiting(f"trajectory {trajectory.trajectory_id}", verdict):
            score = await self.grader.grade(group.task, text)
        if group.state is not GroupState.OPEN:
            return
        score = self.shaping.of(score, trajectory, trajectory.finish)
        self.queue.score(group, trajectory, score, storable(text))

    def _make_ready(self, group: Group) -> None:
        sampled, rewards = [], []
        greedy: float | None = None
        for trajectory in group.trajectories:
            reward = group.scores[trajectory.trajectory_id].reward
            if trajectory.is_greedy:
                greedy = reward
            elif reward is not None:
                sampled.append(trajectory)
                rewards.append(reward)
        min_size = self.algorithm.min_group_size()
        if len(rewards) < min_size or (self.algorithm.needs_greedy() and greedy is None):
            # The others had a fault: one trajectory is no baseline, nor is a greedy one without a verdict.
            self._drop(group, DropReason.FAULT)
            return
        lengths = [trajectory.num_sampled_in_all() for trajectory in sampled]
        # An advantage that fails does so here, while the group is open: it resumes once that is fixed.
        with naming(group):
            advantages = group_advantages(
                GroupRewards(rewards, lengths, greedy, min_size), self.advantage, self.algorithm
            )
        self.queue.has_signal(group)
        if not self.filter.lets_through(group):
            self._drop(group, DropReason.NO_SIGNAL)
            return
        names = [trajectory.trajectory_id for trajectory in sampled]
        self.queue.make_ready(group, dict(zip(names, advantages, strict=True)))
        self.ended(group, None)

    def _drop(self, group: Group, reason: DropReason) -> None:
        self.queue.drop(group, reason)
        self.ended(group, reason)
