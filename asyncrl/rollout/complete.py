"""From an open group to a ready one: generation, a verdict per trajectory as it ends, then advantages."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asyncrl.replay.group import DropReason, Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.filter import SignalFilter
from asyncrl.rollout.generate import GenerationFailed, Generator
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.text import TextCodec
from asyncrl.signal import Signal
from asyncrl.types import Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupCompletion:
    """The rollout loop's body. `advantages` maps the rewards of one group to its advantages."""

    queue: ReplayQueue
    generator: Generator
    grader: Grader
    codec: TextCodec
    advantages: Callable[[Sequence[float]], list[float]]
    signal: Signal
    filter: SignalFilter

    async def run(self, group: Group) -> None:
        """Leaves the group ready or dropped, or still open when the run is stopping."""
        has_failed = False
        async with asyncio.TaskGroup() as verdicts:
            for trajectory in group.trajectories:
                if trajectory.finish is not None and trajectory.trajectory_id not in group.scores:
                    verdicts.create_task(self._grade(group, trajectory))
            try:
                async for trajectory in self.generator.run(group):
                    verdicts.create_task(self._grade(group, trajectory))
            except GenerationFailed as error:
                log.error("group %d is dropped: %s", group.group_id, error)
                has_failed = True
        if has_failed:
            self.queue.drop(group, DropReason.SERVER)
        elif all(trajectory.trajectory_id in group.scores for trajectory in group.trajectories):
            self._make_ready(group)

    async def _grade(self, group: Group, trajectory: Trajectory) -> None:
        text = self.codec.decode(trajectory.response_tokens())
        with self.signal.waiting(f"trajectory {trajectory.trajectory_id}", "its verdict"):
            score = await self.grader.grade(group.task, text)
        self.queue.score(group, trajectory, score, text)

    def _make_ready(self, group: Group) -> None:
        rewards = {
            name: score.reward
            for trajectory in group.trajectories
            if (score := group.scores[(name := trajectory.trajectory_id)]).reward is not None
        }
        if len(rewards) < 2:
            # One trajectory is no baseline; the others had a fault.
            self.queue.drop(group, DropReason.FAULT)
            return
        if not self.filter.lets_through(group):
            self.queue.drop(group, DropReason.NO_SIGNAL)
            return
        values = [reward for reward in rewards.values() if reward is not None]
        self.queue.make_ready(group, dict(zip(rewards, self.advantages(values), strict=True)))
