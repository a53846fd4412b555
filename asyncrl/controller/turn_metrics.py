"""Columns of a step that a run has whose trajectories have turns: turns, calls of tools, observations."""

import json
import statistics
from collections.abc import Sequence
from typing import TypedDict

from asyncrl.records import Finish, Observed, Trajectory
from asyncrl.replay.group import Group


class Turns(TypedDict):
    """Turns of the sampled trajectories with a verdict, in a batch's new groups; None where there is none. A
    call counts once it is answered: the last turn that turns.max_turns allows has no calls."""

    turns_mean: float | None
    turns_max: int | None
    tool_use_share: float | None
    """Share of the trajectories that called a tool."""
    calls_mean: float | None
    call_error_share: float | None
    """Share of the calls that were answered by an error; None without calls."""
    observed_tokens_mean: float | None
    tool_seconds_p50: float | None
    """Time of environments and tools for one turn; None where none was answered."""
    tool_seconds_p99: float | None
    max_turns_share: float | None
    """Share of the trajectories that were cut off in the last turn that turns.max_turns allows."""


def turn_metrics(groups: Sequence[Group], *, max_turns: int) -> Turns:
    played = [trajectory for group in groups for trajectory, _ in group.graded_samples()]
    turns = [len(trajectory.turn_lengths()) for trajectory in played]
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
    }


def num_calls(trajectory: Trajectory) -> int:
    """Calls of tools that were answered, in all branches."""
    notes = (json.loads(answer.notes or "{}") for answer in _answers(trajectory))
    return sum(len(note.get("calls", ())) for note in notes)


def _answers(trajectory: Trajectory) -> list[Observed]:
    return [answer for line in trajectory.lines() for answer in line.answers()]


def _is_at_limit(trajectory: Trajectory, max_turns: int) -> bool:
    num_answers = sum(line.num_observations() for line in trajectory.lines())
    return trajectory.finish is Finish.LENGTH and num_answers + 1 >= max_turns


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
