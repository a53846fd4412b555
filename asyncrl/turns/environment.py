"""The seam that every environment fills, built in or yours. Owns no behaviour.

An environment is built once per trajectory, with the options of its name as keyword arguments, in a process
of its own that is killed when it is late. `start` opens the conversation of a row, `step` answers each turn
until it ends. Both may be `async`. They take and return plain data.

Raising, exiting and crashing mean that the environment failed (FAULT); time and memory are the response's:
the turn's limit ends the trajectory, as wrong.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Message = dict[str, Any]
"""A chat message, {"role": ..., "content": ...}, as the model folder's chat template takes it."""


class EnvironmentUnavailable(Exception):
    """Raise it where something outside the response failed (a server, a file): the trajectory is retried, and
    a FAULT in the end."""


class Recovery(StrEnum):
    """How a conversation continues after its environment's process was lost."""

    REPLAYABLE = "replayable"
    """Deterministic: a new one is given the recorded turns; answers that differ from the recorded ones are a
    FAULT."""
    STATELESS = "stateless"
    """Each answer depends on its turn alone: a new one continues from here."""
    NEITHER = "neither"
    """The trajectory is a FAULT."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer to a turn: what the model reads next."""

    messages: list[Message] | str
    """A text is a message of the user."""
    reward: float | None = None
    """The reward of the turn that it answers, in [-1000000, 1000000], on top of the outcome's
    (algorithm.credit says how it is used); None: none of its own."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a conversation, after the turn that it answers."""

    score: float | None = None
    """Raw correctness in [0, 1]. None: the row's verifier judges the last turn."""
    detail: str = ""
    """Why, in one sentence."""
    extracted: str | None = None
    """The answer that was found."""


class Environment(Protocol):
    """Class attribute `recovery`, a Recovery: REPLAYABLE where there is none. A static method `prepare()`, if
    there is one, loads what all trajectories share, once, in the process that theirs are forked from;
    `close()` is called at the end of a trajectory that is not killed."""

    def start(self, row: Mapping[str, Any]) -> list[Message] | str | None | Awaitable[Any]:
        """The messages that open the conversation of a data row; None: the row's prompt does. The same for
        the same row each time: it is called when data is read, and again for each trajectory."""
        ...

    def step(self, text: str) -> Observation | End | Awaitable[Any]:
        """The answer to a turn, the text that the model wrote."""
        ...
