"""Trajectories of several turns: generated, answered and generated on, each by itself.

While an environment or a tool works, its trajectory has no request: the server's slot is free, and a weight
update may fall between two turns as well as inside one. What was sampled and what was observed is journaled
before the next turn begins; a restart plays on from there.

An answer that nothing will read is not awaited: its environment is closed as soon as its group was dropped,
or nothing will be generated any more. A run that is asked to stop records what still comes in its last
seconds.
"""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from asyncrl.loops import Blocker, BlockerKind, RunPart, Waits, end_tasks, now_seconds
from asyncrl.records import DropReason, Finish, Observed, Score, Trajectory
from asyncrl.replay.branches import TrajectoryRecord, branch_off
from asyncrl.replay.group import Group, GroupState
from asyncrl.rollout.credits import Shaping, credits_of
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.grade import score_of
from asyncrl.turns.conversation import Branched, Conversation, Conversations, Ended, Played
from verifiers.storable import storable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StaleTurns:
    """Warns of the first trajectory that had waited for tools and was dropped as stale, then whenever their
    number has doubled."""

    num_left: int = 0
    """Since the start."""
    _next_told: int = 1

    def left(self, trajectory: Trajectory, tool_seconds: float) -> None:
        """Its group was dropped as stale, after environment and tools had worked for it that long."""
        if tool_seconds <= 0:
            return
        self.num_left += 1
        if self.num_left < self._next_told:
            return
        self._next_told = 2 * self.num_left
        log.warning(
            "trajectory %s was dropped as stale (rollout.abort_staleness) in turn %d, after %.3g s of its "
            "environment and tools; so were %d trajectories since the start. Where tools take longer than "
            "the steps that the limit allows, no trajectory of many turns is trained: raise "
            "rollout.abort_staleness with rollout.max_staleness, or lower turns.max_turns or "
            "turns.max_tool_seconds.",
            trajectory.trajectory_id,
            sum(line.num_observations() for line in trajectory.lines()) + 1,
            tool_seconds,
            self.num_left,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a turn, on its way."""

    group: Group
    work: "asyncio.Task[Observed | Branched | Ended]"
    since_seconds: float
    """As `now_seconds`."""


@dataclass
class TurnPlayer(RunPart):
    """As `Generator.run`, for trajectories that have turns. One per run, and one per evaluation."""

    queue: TrajectoryRecord
    generator: Generator
    conversations: Conversations
    shaping: Shaping
    waits: Waits
    answering: dict[str, Answer] = field(default_factory=dict)
    """By trajectory, those whose turn is being answered: they have tokens and no request."""
    stale: StaleTurns = field(default_factory=StaleTurns)

    async def run(self, group: Group) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group` as it ends, some with a score that their environment gave. Stops early,
        without error, when the run ends. Raises GenerationFailed as the generator does."""
        ended: asyncio.Queue[asyncio.Task[bool]] = asyncio.Queue()
        pending = [trajectory for trajectory in group.trajectories if trajectory.finish is None]
        players = {asyncio.create_task(self._play(group, trajectory)): trajectory for trajectory in pending}
        for player in players:
            player.add_done_callback(_read_error)
            player.add_done_callback(ended.put_nowait)
        try:
            for _ in players:
                player = await ended.get()
                if player.result():
                    yield players[player]
        finally:
            await end_tasks(*players)
            self.generator.forget(group)

    async def loop(self) -> None:
        """Does not return. Abandons the answers that nothing will read."""

        def seen() -> tuple[int, bool]:
            return self.queue.num_dropped, self._is_over()

        while True:
            now = seen()
            for answer in list(self.answering.values()):
                if self._is_over() or answer.group.state is not GroupState.OPEN:
                    answer.work.cancel()
            await self.waits.wait_until(
                lambda now=now: seen() != now,  # type: ignore[misc]
                owner="turns",
                blocker="an answer that nothing will read",
            )

    def num_answered(self) -> int:
        """Answers and faults of environments and tools since the start: more of them is a move."""
        return self.conversations.num_answered + self.conversations.tally.counts["environment_faults"]

    def is_answering_in_time(self) -> bool:
        """Whether an answer is on its way that may still come. After a loss, what was answered is played
        again first: one answer takes twice turns.max_tool_seconds at most."""
        limit = 2 * self.conversations.limits.max_tool_seconds
        return any(now_seconds() - answer.since_seconds < limit for answer in self.answering.values())

    def _is_over(self) -> bool:
        """Whether no further turn will be generated."""
        return self.generator.state.is_ending and not self.generator.state.is_stopped

    async def _play(self, group: Group, trajectory: Trajectory) -> bool:
        """Whether the trajectory ended."""
        task, is_over = group.task, False
        open_conversation = self.conversations.open
        async with open_conversation(
            task.environment, task.row, _played(trajectory), opening=task.messages
        ) as conversation:
            while not is_over and await self._has_turn(group, trajectory, conversation.most_turn_tokens()):
                is_over = await self._answer(group, trajectory, conversation)
        if group.reason is DropReason.STALE:
            self.stale.left(trajectory, conversation.seconds)
        return is_over

    async def _has_turn(self, group: Group, trajectory: Trajectory, most_tokens: int | None) -> bool:
        """Whether a turn was generated to its end; False where the run ends or the group was dropped.
        `most_tokens`: its own limit, besides those of the recipe."""
        line = trajectory.newest_line()
        if trajectory.branches or most_tokens is not None:
            self.generator.limits.limit_branches(trajectory, most_tokens)
        async for _ in self.generator.run(group, [line]):
            pass
        return group.state is GroupState.OPEN and line.turn_finish is not None and not self._is_over()

    async def _answer(self, group: Group, trajectory: Trajectory, conversation: Conversation) -> bool:
        """Whether the trajectory is over; else it waits for its next turn, or was abandoned."""
        line = trajectory.newest_line()
        turn, finish = line.turn_tokens(), line.turn_finish
        assert finish is not None
        if not turn:
            # What was observed left no room for another turn.
            num_before = len(line.prompt_tokens) + line.num_response_tokens()
            self.conversations.tally.add("empty_turns", f"{group.task.task_id}, behind {num_before} tokens")
            self.queue.append(group, trajectory, [], Finish.LENGTH)
            return True
        num_tokens = len(line.prompt_tokens) + line.num_response_tokens()
        answer = conversation.answer(turn, finish, num_tokens)
        found = await self._awaited(group, trajectory, conversation.answerer(), answer)
        if found is None:
            return False
        if isinstance(found, Observed):
            self.queue.observe(group, line, found)
            return False
        if isinstance(found, Branched):
            branch = branch_off(self.queue, group, trajectory, found.observed, found.context)
            assert self.generator.turns is not None
            self.generator.turns.follow(branch, line)
            return False
        self._end(group, trajectory, found)
        return True

    async def _awaited(
        self,
        group: Group,
        trajectory: Trajectory,
        answerer: str,
        answer: Coroutine[Any, Any, Observed | Branched | Ended],
    ) -> Observed | Branched | Ended | None:
        """The answer; None once nothing will read it."""
        name = trajectory.trajectory_id
        work = asyncio.create_task(answer, name=f"answer to {name}")
        work.add_done_callback(_read_error)
        self.answering[name] = Answer(group, work, now_seconds())
        try:
            with self.waits.waiting(f"trajectory {name}", Blocker(BlockerKind.TURN, answerer)):
                await asyncio.wait([work])
        finally:
            del self.answering[name]
            await end_tasks(work)
        return None if work.cancelled() or group.state is not GroupState.OPEN else work.result()

    def _end(self, group: Group, trajectory: Trajectory, ended: Ended) -> None:
        score: Score | None = None
        if ended.verdict is not None:
            score = self.shaping.of(score_of(ended.verdict), trajectory, ended.finish)
            credits = credits_of(score, trajectory, self.conversations.codec)
            score = dataclasses.replace(score, credits=credits)
        text = storable(self.conversations.codec.decode(trajectory.answer_tokens()))
        self.queue.end(group, trajectory, ended.finish, score, text)


def _played(trajectory: Trajectory) -> list[Played]:
    """The turns that were answered, branch after branch."""
    return [
        Played(turn, answer.notes)
        for line in trajectory.lines()
        for turn, answer in zip(line.turns(), line.answers(), strict=False)
    ]


def _read_error(task: "asyncio.Task[Any]") -> None:
    """When several tasks fail at once, one error is raised; asyncio would report the others as unread."""
    if not task.cancelled():
        task.exception()
