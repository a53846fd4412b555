"""The verdict in a judge's reply: a letter, a number or JSON, where it was asked for, or none at all.

Only the end of the reply counts. What the judge quotes before it, from a response that forges a verdict too,
decides nothing; and a reply without a verdict at its end is a fault, never a wrong answer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from verifiers import strict_json
from verifiers.verdict import as_number

Kind = Literal["letter", "number", "json"]
_LABEL = r"(?:\W*(?:final\s+)?(?:verdict|answer|score|grade|rating)\W*(?:is\W*)?)?"
_LETTER = re.compile(rf"(?i:{_LABEL})\W*([A-Z])\W*")
_NUMBER = re.compile(
    rf"(?i:{_LABEL})[\s*_:=`]*([-+]?\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*(\d+(?:\.\d+)?))?[\s*_.`]*"
)
_MAX_LINE_CHARACTERS = 200
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)


class Answer(Protocol):
    """Reads replies. Built by `answer_of`."""

    def read(self, reply: str) -> tuple[str, float]:
        """The judge's own word, and the score in [0, 1]. Raises ValueError for a reply without a verdict."""
        ...


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float

    def share(self, value: object) -> float:
        """`value` as a share of the scale. Raises ValueError outside of it."""
        number = as_number(value, "the judge's score", self.low, self.high)
        return (number - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class LetterAnswer:
    scores: Mapping[str, float]
    """Score of each letter."""

    def read(self, reply: str) -> tuple[str, float]:
        found = _LETTER.fullmatch(last_line(reply))
        if found is None or found[1] not in self.scores:
            raise ValueError(f"the last line of the judge's reply is none of {', '.join(self.scores)}")
        return found[1], self.scores[found[1]]


@dataclass(frozen=True, slots=True)
class NumberAnswer:
    scale: Scale

    def read(self, reply: str) -> tuple[str, float]:
        found = _NUMBER.fullmatch(last_line(reply))
        if found is None:
            raise ValueError("the last line of the judge's reply is no number")
        if found[2] is not None and float(found[2]) != self.scale.high:
            raise ValueError(f"the judge's score is of {found[2]}, expected one of {self.scale.high:g}")
        return found[1], self.scale.share(float(found[1]))


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    key: str
    scale: Scale

    def read(self, reply: str) -> tuple[str, float]:
        text = _conclusion(reply).strip()
        fenced = _FENCE.search(text)
        found = strict_json.loads(text if fenced is None else fenced[1])
        if not isinstance(found, dict) or self.key not in found:
            raise ValueError(f"the judge's reply is no JSON object with {self.key!r}")
        value = found[self.key]
        if isinstance(value, bool):
            return str(value).lower(), float(value)
        return repr(value)[:100], self.scale.share(value)


def answer_of(kind: Kind, *, letters: Mapping[str, object], key: str, scale: tuple[float, ...]) -> Answer:
    """Raises ValueError for options that make no sense together."""
    if kind == "letter":
        scores = {
            letter: as_number(score, f"letters.{letter}", 0.0, 1.0) for letter, score in letters.items()
        }
        if len(scores) < 2 or not all(re.fullmatch("[A-Z]", letter) for letter in scores):
            raise ValueError(
                f"Option 'letters' is {dict(letters)!r}, expected capital letters, two at least, and their "
                f"scores in [0, 1]."
            )
        return LetterAnswer(scores)
    if len(scale) != 2 or not scale[0] < scale[1]:
        raise ValueError(f"Option 'scale' is {list(scale)!r}, expected the worst and the best score.")
    return NumberAnswer(Scale(*scale)) if kind == "number" else JsonAnswer(key, Scale(*scale))


def _conclusion(reply: str) -> str:
    """The reply after its thoughts; a thought that is still open has no conclusion."""
    before, closed, conclusion = reply.rpartition("</think>")
    if closed:
        return conclusion
    return "" if "<think>" in conclusion else conclusion


def last_line(reply: str) -> str:
    """The last line of the reply's conclusion; empty where it is long."""
    lines = _conclusion(reply).strip().splitlines()
    line = lines[-1].strip() if lines else ""
    return line if len(line) <= _MAX_LINE_CHARACTERS else ""
