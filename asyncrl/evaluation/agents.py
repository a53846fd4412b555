"""Agents in an evaluation: a program makes each sample as it makes a trajectory of a run, by an endpoint that
records, but what is recorded stays in memory and is gone with its verdict.

The endpoint and the programs live as long as the samples that are asked for: an evaluation that is cancelled
ends them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from asyncrl.journal.counters import Statement, bump
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Finish, SamplingParams, Score, Segment, Task, Trajectory
from asyncrl.replay.group import Group, GroupState, trajectory_id
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.limits import Limits
from asyncrl.rollout.request_rules import RequestRules
from asyncrl.rollout.shaping import Shaping
from asyncrl.rollout.turns import OpenTurns
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.router import Gate

MAX_RETRIES = 2
"""Requests in a row that may bring no token before an evaluation fails."""


@dataclass(slots=True)
class Asked(Group):
    """One sample of a task."""

    @property
    def title(self) -> str:
        return f"the evaluation of {self.task.task_id}"


class Unrecorded:
    """A `TrajectoryRecord` in memory alone. Tokens of any version may follow each other."""

    def __init__(self, streamed: Callable[[int], None]) -> None:
        """`streamed` is called with the number of tokens that have come."""
        self._streamed = streamed

    @property
    def journal(self) -> "Unrecorded":
        return self

    def write(self, *statements: Statement) -> None:
        pass

    def count(self, counter: str, amount: int) -> Statement:
        return bump(counter, amount)

    def is_catching_up(self) -> bool:
        return False

    def stream_from(self, server: str, trajectories: Sequence[Trajectory]) -> None:
        pass

    def append(
        self, group: Group, trajectory: Trajectory, segments: Sequence[Segment], finish: Finish | None
    ) -> None:
        for segment in segments:
            self._streamed(len(segment.tokens))
            trajectory.extend(segment)
        trajectory.finish = finish

    def end(
        self, group: Group, trajectory: Trajectory, finish: Finish, score: Score | None, text: str
    ) -> None:
        trajectory.finish = finish
        if score is not None:
            group.scores[trajectory.trajectory_id] = score

    def discard(self, num_tokens: int, reason: DropReason) -> None:
        self._streamed(num_tokens)

    def drop(self, group: Group, reason: DropReason) -> None:
        group.state, group.reason = GroupState.DROPPED, reason


class EvaluatedAgents:
    """Plays the agents of all evaluations of a run, or of one `asyncrl eval`: together they have as many
    programs at once as agent.max_agents, besides those of rollouts."""

    def __init__(self, kit: AgentKit) -> None:
        self._kit = kit
        self._places = asyncio.Semaphore(kit.section.max_agents)

    @contextlib.asynccontextmanager
    async def playing(
        self,
        fleet: Fleet,
        waits: Waits,
        codec: TextCodec,
        sampling: SamplingParams,
        context_tokens: int,
        *,
        name: str,
        streamed: Callable[[int], None],
    ) -> AsyncIterator[AgentPlayer]:
        """A player on the servers of `fleet`. `name` opens every request id and cache salt."""
        # Of its own: evaluations are made while a run ends, too.
        state = RunPhase(waits)
        generator = Generator(
            Unrecorded(streamed),
            fleet,
            waits,
            Limits(sampling, context_tokens, stop=codec.stop),
            MAX_RETRIES,
            name,
            state=state,
            rules=RequestRules(may_go_back=True),
            turns=OpenTurns(),
            # A drain waits for the turn that streams, and for no further one.
            is_parked=lambda: fleet.router.gate is not Gate.OPEN,
        )
        shaping = Shaping(Algorithm(), generator.limits)
        agents = self._kit.agents(generator, codec, shaping, waits, state, places=self._places)
        async with agents.endpoint:
            yield agents.player


async def play(
    player: AgentPlayer, task: Task, number: int, *, is_greedy: bool
) -> tuple[Trajectory, Score | None]:
    """The trajectory of one sample, and the score where its agent or a limit gave one. `number` is the
    sample's among those of the player. Raises GenerationFailed."""
    trajectory = Trajectory(trajectory_id(number, 0), task.prompt_tokens, is_greedy=is_greedy)
    group = Asked(number, task, 0, [trajectory])
    async for _ in player.run(group):
        pass
    assert trajectory.finish is not None, "an evaluation ends by being cancelled"
    return trajectory, group.scores.get(trajectory.trajectory_id)


def answer_line(trajectory: Trajectory) -> Trajectory:
    """The conversation that the last call's first reply is part of."""
    last = next((call for call in reversed(trajectory.calls) if call.choice == 0), None)
    return trajectory if last is None else trajectory.branch(last.branch)
