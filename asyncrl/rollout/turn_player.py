"""Trajectories of several turns: generated, answered and generated on, each by itself.

While an environment or a tool works, its trajectory has no request: the server's slot is free, and a weight
update may fall between two turns as well as inside one. What was sampled and what was observed is journaled
before the next turn begins; a restart plays on from there.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from asyncrl.loops.waits import Blocker, BlockerKind, Waits
from asyncrl.records import Finish, Observed, Score, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.credits import credits_of
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.grade import score_of
from asyncrl.rollout.shaping import Shaping
from asyncrl.turns.conversation import Conversation, Conversations, Ended, Played
from verifiers.storable import storable


@dataclass
class TurnPlayer:
    """As `Generator.run`, for trajectories that have turns."""

    queue: ReplayQueue
    generator: Generator
    conversations: Conversations
    shaping: Shaping
    waits: Waits
    answering: set[str] = field(default_factory=set)
    """Trajectories whose turn is being answered: they have tokens and no request."""

    async def run(self, group: Group) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group` as it ends, some with a score that their environment gave. Stops early,
        without error, when the run ends. Raises GenerationFailed as the generator does."""
        ended: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        pending = [trajectory for trajectory in group.trajectories if trajectory.finish is None]
        tasks = [asyncio.create_task(self._play(group, trajectory, ended)) for trajectory in pending]
        try:
            for _ in tasks:
                trajectory = await ended.get()
                if trajectory is not None:
                    yield trajectory
            # Raises what a player raised.
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.generator.forget(group)

    async def _play(
        self, group: Group, trajectory: Trajectory, ended: "asyncio.Queue[Trajectory | None]"
    ) -> None:
        is_over = False
        try:
            task = group.task
            async with self.conversations.open(
                task.environment, task.row, _played(trajectory)
            ) as conversation:
                while not is_over and await self._has_turn(group, trajectory):
                    is_over = await self._answer(group, trajectory, conversation)
        finally:
            ended.put_nowait(trajectory if is_over else None)

    async def _has_turn(self, group: Group, trajectory: Trajectory) -> bool:
        """Whether a turn was generated to its end; False where the run ends or the group was dropped."""
        async for _ in self.generator.run(group, [trajectory]):
            pass
        return group.state is GroupState.OPEN and trajectory.turn_finish is not None

    async def _answer(self, group: Group, trajectory: Trajectory, conversation: Conversation) -> bool:
        """Whether the trajectory is over; else it waits for its next turn."""
        turn, finish = trajectory.turn_tokens(), trajectory.turn_finish
        assert finish is not None
        if not turn:
            # What was observed left no room for another turn.
            self.queue.append(group, trajectory, [], Finish.LENGTH)
            return True
        self.answering.add(trajectory.trajectory_id)
        try:
            answer = Blocker(BlockerKind.TURN, conversation.answerer())
            with self.waits.waiting(f"trajectory {trajectory.trajectory_id}", answer):
                found = await conversation.answer(turn, finish)
        finally:
            self.answering.discard(trajectory.trajectory_id)
        if group.state is not GroupState.OPEN:
            return False
        if isinstance(found, Observed):
            self.queue.observe(group, trajectory, found)
            return False
        self._end(group, trajectory, found)
        return True

    def _end(self, group: Group, trajectory: Trajectory, ended: Ended) -> None:
        score: Score | None = None
        if ended.verdict is not None:
            score = self.shaping.of(score_of(ended.verdict), trajectory, ended.finish)
            credits = credits_of(score, trajectory, self.conversations.codec)
            score = dataclasses.replace(score, credits=credits)
        text = storable(self.conversations.codec.decode(trajectory.answer_tokens()))
        self.queue.end(group, trajectory, ended.finish, score, text)


def _played(trajectory: Trajectory) -> list[Played]:
    """The turns that were answered."""
    answers = [part for part in trajectory.segments if isinstance(part, Observed)]
    return [Played(turn, answer.notes) for turn, answer in zip(trajectory.turns(), answers, strict=False)]
