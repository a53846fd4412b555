"""Columns of a step that a run has whose trajectories an agent makes: calls, branches, programs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from asyncrl.journal.counters import DROPPED
from asyncrl.records import DropReason
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.agents.player import AgentPlayer


class AgentCalls(TypedDict):
    """Sampled trajectories with a verdict, in a batch's new groups; None where there is none."""

    agent_calls_mean: float | None
    """Calls of the model per trajectory; one for several replies counts once."""
    agent_branches_mean: float | None
    """Conversations after the first one, per trajectory."""


class AgentWork(TypedDict):
    """Programs of rollouts since the last step, but for the first two."""

    agents_running: int
    """Programs at work when the step ended."""
    agents_waiting: int
    """Trajectories that waited for a place then (agent.max_agents)."""
    agent_seconds_p50: float | None
    """A program's own time, without waits for the model; None where none ended."""
    agent_seconds_p99: float | None
    agent_restarts: int
    agent_abandoned_tokens: int
    """Sampled for calls that an agent left."""


def agent_calls(groups: Sequence[Group]) -> AgentCalls:
    played = [trajectory for group in groups for trajectory, _ in group.graded_samples()]
    calls = [len({call.ordinal for call in trajectory.calls}) for trajectory in played]
    return {
        "agent_calls_mean": statistics.fmean(calls) if calls else None,
        "agent_branches_mean": statistics.fmean(len(t.branches) for t in played) if played else None,
    }


@dataclass
class AgentMeter:
    """Reads the player once per step."""

    player: AgentPlayer
    queue: ReplayQueue
    _before: dict[str, int] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """`AgentWork` and the columns of the tally."""
        player = self.player
        seconds = sorted(player.ended_seconds)
        player.ended_seconds.clear()
        abandoned = self.queue.counters.get(DROPPED + DropReason.ABANDONED, 0)
        work: AgentWork = {
            "agents_running": player.num_running,
            "agents_waiting": player.num_waiting,
            "agent_seconds_p50": seconds[len(seconds) // 2] if seconds else None,
            "agent_seconds_p99": seconds[int(0.99 * (len(seconds) - 1))] if seconds else None,
            "agent_restarts": self._new("restarts", player.num_restarts),
            "agent_abandoned_tokens": self._new("abandoned", abandoned),
        }
        return {**work, **player.recorder.tally.row()}

    def _new(self, name: str, count: int) -> int:
        before, self._before[name] = self._before.get(name, 0), count
        return count - before
