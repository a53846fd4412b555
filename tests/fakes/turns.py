"""Trajectories of several turns, written into a queue as a run would."""

import json
from typing import Any

from asyncrl.records import Finish, Observed, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue


def called(
    name: str,
    arguments: dict[str, Any],
    output: str,
    *,
    tokens: list[int],
    is_error: bool = False,
    seconds: float = 0.003,
) -> Observed:
    """The result of one call, as a conversation notes it."""
    call = {"name": name, "arguments": arguments, "error": "", "is_unfinished": False}
    messages = [{"role": "tool", "name": name, "content": output}]
    notes = {"seconds": seconds, "calls": [call], "are_errors": [is_error], "messages": messages}
    return Observed(tokens, json.dumps(notes))


def told(text: str, *, tokens: list[int], reward: float | None = None, seconds: float = 0.5) -> Observed:
    """An environment's answer."""
    messages = [{"role": "user", "content": text}]
    return Observed(tokens, json.dumps({"seconds": seconds, "messages": messages, "reward": reward}))


def play_turns(
    queue: ReplayQueue,
    group: Group,
    trajectory: Trajectory,
    turns: list[tuple[list[Segment], Observed]],
    last: list[Segment],
    finish: Finish = Finish.STOP,
) -> None:
    """Turns with their answers, and the last turn."""
    for segments, observed in turns:
        queue.append(group, trajectory, segments, None)
        trajectory.turn_finish = Finish.STOP
        queue.observe(group, trajectory, observed)
    queue.append(group, trajectory, last, finish)
    trajectory.turn_finish = finish
