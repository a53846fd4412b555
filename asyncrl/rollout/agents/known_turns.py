"""Finds the recorded turn that a conversation continues, by its messages.

An agent says the whole conversation each time. Where its messages begin with those of an earlier call and
the reply that this one got, the sampled tokens stand for them, and only what is new is rendered. Messages are
compared as `canonical` makes them; white space around what the assistant wrote does not count, since agents
strip it.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.records import Trajectory
from asyncrl.turns.environment import Message


@dataclass(frozen=True, slots=True)
class KnownTurn:
    line: Trajectory
    turn: int


@dataclass
class KnownTurns:
    """The answered turns of one trajectory."""

    _by_messages: dict[str, list[KnownTurn]] = field(default_factory=lambda: defaultdict(list))

    def add(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], turn: KnownTurn) -> None:
        """`turn` is the last of `messages`."""
        self._by_messages[_digests(messages, tools)[-1]].append(turn)

    def find(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> tuple[list[KnownTurn], int] | None:
        """The turns that may be the last of the assistant's in `messages`, and how many messages end with
        it; None where that one was not recorded after these messages."""
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is None:
            return None
        found = self._by_messages.get(_digests(messages[: last + 1], tools)[-1])
        return (found, last + 1) if found else None


def _digests(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[str]:
    """One for the messages up to each."""
    running = hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode())
    found = []
    for message in messages:
        same = message
        if message["role"] == "assistant":
            same = {**message, "content": message["content"].strip()}
        running.update(json.dumps(same, sort_keys=True).encode())
        found.append(running.hexdigest())
    return found
