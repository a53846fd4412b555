"""A trajectory's task and conversation as a verifier reads them, made for a verifier that takes the task."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Observed, Task, Trajectory
from verifiers import task as told
from verifiers.storable import storable


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns and their answers, after the prompt."""

    turns: tuple[str, ...]
    observations: tuple[tuple[told.Message, ...], ...]
    """The messages that answered each turn but the last."""


def told_task(task: Task, response: str, conversation: Callable[[], Conversation] | None = None) -> told.Task:
    """The task with its conversation; by default that is `response` alone."""
    found = Conversation((response,), ()) if conversation is None else conversation()
    return told.Task(task.prompt, task.messages, task.row, found.turns, found.observations)


def conversation_of(
    turns: Sequence[Sequence[int]], observed: Sequence[Observed], codec: TextCodec
) -> Conversation:
    """`turns`: the tokens that were sampled, turn by turn."""
    if observed and turns and not turns[-1]:
        # What was observed left no room for another turn.
        turns = turns[:-1]
    texts = tuple(storable(codec.decode(turn)) for turn in turns)
    return Conversation(texts, tuple(_messages(part, codec) for part in observed))


def conversation_in(trajectory: Trajectory, codec: TextCodec) -> Conversation:
    observed = [part for part in trajectory.segments if isinstance(part, Observed)]
    return conversation_of(trajectory.turns(), observed, codec)


def _messages(observed: Observed, codec: TextCodec) -> tuple[told.Message, ...]:
    """As the environment or the tools gave them; without notes of them, the tokens that the model read."""
    messages = json.loads(observed.notes or "{}").get("messages")
    if messages is not None:
        return tuple(messages)
    return ({"role": "user", "content": storable(codec.decode(observed.tokens))},)
