"""Observations between two turns, as the page is told them: untrusted text, shortened."""

from collections.abc import Sequence
from typing import TypedDict

from asyncrl.journal.observations import as_text
from asyncrl.journal.rows import CallRow, MessageRow, ObservationRow
from asyncrl.system.shortened import shortened

MOST_CHARACTERS = 4000
"""Most of one text that a page is sent; the head and the tail of a longer one."""


class PageCall(TypedDict):
    name: str
    """Empty where it could not be read."""
    arguments: list[tuple[str, str]]
    """Name and value, which is JSON where it is not text."""
    error: str
    """Why it could not be made."""
    output: str
    is_error: bool


class PageObservation(TypedDict):
    position: int
    """Position in the response, which counts sampled and observed tokens."""
    turn: int
    """The turn that it answers, from 0."""
    turn_finish: str
    num_tokens: int
    seconds: float | None
    reward: float | None
    text: str
    """All that the model reads, with what the chat template writes. Empty where the trajectory is told
    without its text, as are calls and messages."""
    calls: list[PageCall]
    messages: list[MessageRow]


def page_observation(row: ObservationRow, texts: Sequence[str] | None) -> PageObservation:
    """`texts` of all tokens of the response; None: without text."""
    has_text = texts is not None
    text = "".join(texts[row["position"] : row["position"] + len(row["tokens"])]) if texts else ""
    return PageObservation(
        position=row["position"],
        turn=row["turn"],
        turn_finish=row["turn_finish"],
        num_tokens=len(row["tokens"]),
        seconds=row["seconds"],
        reward=row["reward"],
        text=_short(text),
        calls=[_call(call) for call in row["calls"]] if has_text else [],
        messages=[{**each, "text": _short(each["text"])} for each in row["messages"]] if has_text else [],
    )


def _short(text: str) -> str:
    return shortened(text, MOST_CHARACTERS)


def _call(call: CallRow) -> PageCall:
    return PageCall(
        name=_short(call["name"]),
        arguments=[(_short(name), _short(as_text(value))) for name, value in call["arguments"].items()],
        error=_short(call["error"]),
        output=_short(call["output"]),
        is_error=call["is_error"],
    )
