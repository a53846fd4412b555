"""The seam between a conversation and the process that hosts its environment and tools; how a new process is
brought to the point where recorded turns end, each part as it recovers.

What is stateless is not asked again. What is replayable is, and must answer as it was recorded. What is
neither cannot be brought back once it was asked. A tool that lost its state in the middle, together with its
process, is played from there on, as the model was told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.calls import Call, CallResult
from asyncrl.turns.environment import End, Message, Observation, Recovery


class EnvironmentFault(Exception):
    """An environment or its process failed: says nothing about the response. The message says how."""

    def __init__(self, detail: str, trace: str = "") -> None:
        super().__init__(detail)
        self.trace = trace


class TurnLimit(Exception):
    """A turn needed more time or memory than it may: the response's doing. The message says which limit."""


@dataclass(frozen=True, slots=True)
class Recoveries:
    """How each part of an episode continues after its process was lost."""

    environment: Recovery = Recovery.STATELESS
    """That of no environment, too."""
    tools: Mapping[str, Recovery] = field(default_factory=dict)

    def some_are(self, recovery: Recovery) -> bool:
        """Whether a part recovers so."""
        return recovery in (self.environment, *self.tools.values())


class Episode(Protocol):
    """One trajectory's environment and tools. Each call may raise EnvironmentFault or TurnLimit; a tool that
    raises or is late is a CallResult, since the model reads it."""

    recoveries: Recoveries

    async def start(self, row: Mapping[str, Any]) -> list[Message] | None:
        """None without an environment, or where the row's prompt opens the conversation."""
        ...

    async def step(self, text: str) -> Observation | End:
        """The environment's answer. Without one: End(), so that the row's verifier judges the last turn."""
        ...

    async def call(self, calls: Sequence[Call]) -> list[CallResult]:
        """The tools' results, in order; a Call with an error is answered by that."""
        ...

    async def close(self) -> None:
        """Ends the process. May be called again."""
        ...


class Episodes(Protocol):
    """Opens episodes: a pool of processes in a run, a fake in tests."""

    async def open(self, environment: EnvironmentSpec | None) -> Episode:
        """Waits for a place. Raises EnvironmentFault where no process can start."""
        ...


MOST_CHARACTERS = 200_000
"""Most characters of one message that an environment or a tool answers."""


def reply_messages(reply: Observation) -> list[Message]:
    if isinstance(reply.messages, str):
        return [{"role": "user", "content": shortened(reply.messages)}]
    return [
        {**message, "content": shortened(message["content"])}
        if isinstance(message.get("content"), str)
        else message
        for message in reply.messages
    ]


def shortened(text: str) -> str:
    """Without its middle, where it is longer than any observation: the journal keeps each."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half, left_out = MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS
    return f"{text[:half]}[... {left_out} characters were left out here ...]{text[-half:]}"


def result_messages(results: Sequence[CallResult]) -> list[Message]:
    return [{"role": "tool", "name": result.name, "content": shortened(result.output)} for result in results]


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
