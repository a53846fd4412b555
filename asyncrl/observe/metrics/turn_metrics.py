"""Columns of a step by source, and of trajectories with turns or an agent."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.journal.connection import DROPPED
from asyncrl.records import DropReason, Finish, Observed, Trajectory
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.run.metrics_file import Row
from asyncrl.turns.history import is_summary


def agent_calls(groups: Sequence[Group]) -> Row:
    """Calls and branches of sampled trajectories with a verdict, in a batch's new groups."""
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

    def read(self) -> Row:
        """Programs of rollouts since the last step, but for those that run or wait now; and the tally's
        columns."""
        player = self.player
        seconds = sorted(player.ended_seconds)
        player.ended_seconds.clear()
        abandoned = self.queue.counters.get(DROPPED + DropReason.ABANDONED, 0)
        return {
            "agents_running": player.num_running,
            "agents_waiting": player.num_waiting,
            "agent_seconds_p50": seconds[len(seconds) // 2] if seconds else None,
            "agent_seconds_p99": seconds[int(0.99 * (len(seconds) - 1))] if seconds else None,
            "agent_restarts": self._new("restarts", player.num_restarts),
            "agent_abandoned_tokens": self._new("abandoned", abandoned),
            **player.recorder.tally.row(),
        }

    def _new(self, name: str, count: int) -> int:
        before, self._before[name] = self._before.get(name, 0), count
        return count - before


def turn_metrics(groups: Sequence[Group], *, max_turns: int) -> Row:
    """Turns of the sampled trajectories with a verdict, in a batch's new groups; None where there is none. A
    call counts once it is answered: the last turn that turns.max_turns allows has no calls."""
    played = [trajectory for group in groups for trajectory, _ in group.graded_samples()]
    summaries = [_summaries(trajectory) for trajectory in played]
    turns = [len(t.turn_lengths()) - len(own) for t, own in zip(played, summaries, strict=True)]
    answers = [_answers(trajectory) for trajectory in played]
    notes = [[json.loads(answer.notes or "{}") for answer in each] for each in answers]
    calls = [num_calls(trajectory) for trajectory in played]
    errors = sum(sum(note.get("are_errors", ())) for each in notes for note in each)
    seconds = sorted(float(note.get("seconds", 0.0)) for each in notes for note in each)
    observed = [sum(len(answer.tokens) for answer in each) for each in answers]
    return {
        "turns_mean": _mean(turns),
        "turns_max": max(turns, default=None),
        "tool_use_share": _mean([count > 0 for count in calls]),
        "calls_mean": _mean(calls),
        "call_error_share": errors / sum(calls) if sum(calls) else None,
        "observed_tokens_mean": _mean(observed),
        "tool_seconds_p50": seconds[len(seconds) // 2] if seconds else None,
        "tool_seconds_p99": seconds[int(0.99 * (len(seconds) - 1))] if seconds else None,
        "max_turns_share": _mean([_is_at_limit(trajectory, max_turns) for trajectory in played]),
        "summaries_mean": _mean([len(own) for own in summaries]),
        "summary_tokens_mean": _mean([length for own in summaries for length in own]),
    }


def num_calls(trajectory: Trajectory) -> int:
    """Calls of tools that were answered, in all branches."""
    notes = (json.loads(answer.notes or "{}") for answer in _answers(trajectory))
    return sum(len(note.get("calls", ())) for note in notes)


def _answers(trajectory: Trajectory) -> list[Observed]:
    return [answer for line in trajectory.lines() for answer in line.answers()]


def _is_at_limit(trajectory: Trajectory, max_turns: int) -> bool:
    num_answers = sum(line.num_observations() for line in trajectory.lines())
    num_turns = num_answers - len(_summaries(trajectory)) + 1
    return trajectory.finish is Finish.LENGTH and num_turns >= max_turns


def _summaries(trajectory: Trajectory) -> list[int]:
    """Sampled tokens of each summary (turns.summarize)."""
    return [
        len(turn)
        for line in trajectory.lines()
        for turn, answer in zip(line.turns(), line.answers(), strict=False)
        if is_summary(answer.notes)
    ]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


class PilotMeter:
    """Hears of each decision about a pilot; read once per step."""

    def __init__(self, *, has_sources: bool) -> None:
        self._has_sources = has_sources
        self._num_decided: Counter[str] = Counter()
        self._num_stopped: Counter[str] = Counter()

    def decided(self, group: Group, is_extended: bool) -> None:
        source = group.task.source()
        self._num_decided[source] += 1
        self._num_stopped[source] += not is_extended

    def read(self) -> Row:
        """Groups whose pilots were graded since the last call, those that are dropped too; shares are None
        where there was none."""
        decided, stopped = self._num_decided, self._num_stopped
        self._num_decided, self._num_stopped = Counter(), Counter()
        found: Row = {
            "pilots_stopped": stopped.total(),
            "pilots_stopped_share": stopped.total() / decided.total() if decided else None,
        }
        if self._has_sources:
            found["pilots_stopped_share_by_source"] = {
                source: stopped[source] / number for source, number in sorted(decided.items())
            }
        return found


def source_metrics(groups: Sequence[Group], *, has_turns: bool) -> Row:
    """Source -> value, of the sampled trajectories with a verdict in a batch's new groups. A source without
    any is left out."""
    by_source: dict[str, list[Group]] = {}
    for group in groups:
        by_source.setdefault(group.task.source(), []).append(group)
    found: Row = {
        "correct_mean_by_source": {
            source: mean
            for source, own in sorted(by_source.items())
            if (mean := mean_correctness(own)) is not None
        },
        "groups_share_by_source": {
            source: len(own) / len(groups) for source, own in sorted(by_source.items())
        },
    }
    if has_turns:
        used = {
            source: [num_calls(t) > 0 for group in own for t, _ in group.graded_samples()]
            for source, own in sorted(by_source.items())
        }
        found["tool_use_share_by_source"] = {s: statistics.fmean(each) for s, each in used.items() if each}
    return found


def mean_correctness(groups: Sequence[Group]) -> float | None:
    """Mean over groups of the mean correctness of their samples: each row counts once, however many samples
    adaptive groups and faults leave it. None without a verdict."""
    scored = [
        [score.correctness for score in group.sampled_scores().values() if score.correctness is not None]
        for group in groups
    ]
    means = [statistics.fmean(each) for each in scored if each]
    return statistics.fmean(means) if means else None
