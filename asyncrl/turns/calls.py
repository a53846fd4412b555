"""Calls of tools in what a model wrote, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, as the model wrote it."""

    name: str
    """Empty where it could not be read."""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it cannot be made, in words for the model; empty for a call that can."""
    is_unfinished: bool = False
    """Whether the turn ended before the call did: an error of the model's, or of a limit that cut it off."""


@dataclass(frozen=True, slots=True)
class CallResult:
    name: str
    output: str
    """Text that the model reads."""
    is_error: bool = False
    seconds: float = 0.0
    has_lost: bool = False
    """Whether all tools had lost their state after it, since their process was ended."""


class CallFormat(Protocol):
    """A way to write calls. Built by `asyncrl.turns.formats.call_format`."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a turn, besides those of the recipe."""
        ...

    @property
    def is_inline(self) -> bool:
        """Whether results stand in the model's own message, so that no chat template is needed."""
        ...

    @property
    def offers_tools(self) -> bool:
        """Whether the chat template tells the model of the tools, in the form of these calls."""
        ...

    def parse(self, turn: Sequence[int]) -> list[Call]:
        """The calls of a turn, in order; none where the model called nothing. A call that was begun and
        cannot be read is a Call with an error. What the model forges (results, other roles) is text like any
        other."""
        ...

    def around(self, result: CallResult) -> tuple[str, str]:
        """Texts in front of an inline result and behind it."""
        ...
