"""Brings a new process of environment and tools to the point where recorded turns end, each part as it
recovers.

What is stateless is not asked again. What is replayable is, and must answer as it was recorded. What is
neither cannot be brought back once it was asked. A tool that lost its state in the middle, together with its
process, is played from there on, as the model was told.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.turns.calls import Call, CallResult
from asyncrl.turns.environment import Message, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault, Episode, Recoveries


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn that was answered."""

    text: str
    messages: list[Message]
    """The answer. One per call, where there were calls."""
    calls: list[Call] | None = None
    """None where the environment answered."""
    losses: list[int] = field(default_factory=list)
    """Calls after which all tools had lost their state."""


def read_turn(text: str, notes: str) -> RecordedTurn:
    """The turn of a text, from the notes on its answer."""
    known: dict[str, Any] = json.loads(notes)
    calls = [Call(**call) for call in known["calls"]] if "calls" in known else None
    return RecordedTurn(text, known["messages"], calls, known.get("losses", []))


def lost_part(recoveries: Recoveries, turns: Sequence[RecordedTurn]) -> str | None:
    """The part that was asked in `turns` and that no other process can continue, in words; None where all can
    be brought back."""
    if recoveries.environment is Recovery.NEITHER and any(turn.calls is None for turn in turns):
        return "the environment"
    for _, _, call in _calls_since_loss(turns):
        if recoveries.tools.get(call.name) is Recovery.NEITHER and not call.error:
            return f'the tool "{call.name}"'
    return None


async def bring_back(
    episode: Episode,
    turns: Sequence[RecordedTurn],
    result_messages: Callable[[Sequence[CallResult]], list[Message]],
    reply_messages: Callable[[Observation], list[Message]],
) -> None:
    """Plays again what must be. Raises EnvironmentFault where a part cannot be, or answers otherwise than it
    was recorded."""
    lost = lost_part(episode.recoveries, turns)
    if lost is not None:
        raise EnvironmentFault(
            f"its process was lost after {len(turns)} turns, and {lost} says that it cannot be played again "
            f"(recovery)"
        )
    calls = _replayable_calls(episode.recoveries, turns)
    for index, turn in enumerate(turns):
        if turn.calls is None:
            if episode.recoveries.environment is Recovery.REPLAYABLE:
                reply = await episode.step(turn.text)
                messages = reply_messages(reply) if isinstance(reply, Observation) else []
                _compare(index, messages, turn.messages)
        elif again := calls.get(index):
            results = await episode.call([turn.calls[place] for place in again])
            _compare(index, result_messages(results), [turn.messages[place] for place in again])


def _replayable_calls(recoveries: Recoveries, turns: Sequence[RecordedTurn]) -> dict[int, list[int]]:
    """Turn -> its calls that are made again."""
    found: dict[int, list[int]] = {}
    for turn, place, call in _calls_since_loss(turns):
        if recoveries.tools.get(call.name) is Recovery.REPLAYABLE and not call.error:
            found.setdefault(turn, []).append(place)
    return found


def _calls_since_loss(turns: Sequence[RecordedTurn]) -> list[tuple[int, int, Call]]:
    """(turn, place within it, call) of those that a tool's state may come from."""
    every = [(i, j, call) for i, turn in enumerate(turns) for j, call in enumerate(turn.calls or [])]
    last = max(((i, j) for i, turn in enumerate(turns) for j in turn.losses), default=(-1, -1))
    return [each for each in every if each[:2] > last]


def _compare(index: int, messages: list[Message], recorded: list[Message]) -> None:
    if messages != recorded:
        raise EnvironmentFault(
            f"turn {index + 1} was played again after a loss and answered otherwise than recorded: what "
            f"depends on chance or time must say so (recovery: stateless or neither)"
        )
