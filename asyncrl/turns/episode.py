"""The seam between a conversation and the process that hosts its environment and tools."""

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
