"""The result of a verifier for one response. Owns the four outcomes and the rule that a fault has
no score. A verdict never carries a reward: shaping (format, length) is recorded apart, so that
filters see raw correctness."""

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

MAX_SHAPING = 1e6
"""Rewards are float32 further on, and their groups are squared."""
MAX_CREDITS = 10_000
"""Most spans, or turns, that a verdict may give rewards of their own."""
MAX_SCORES = 100
"""Most named scores of a verdict."""
MAX_NAME_CHARACTERS = 100
MAX_CHARACTERS = 1 << 40
"""Far above any text: keeps places of spans within what a message holds."""

Span = tuple[int, int, float]
"""(first character, end character, reward) of a part of the response's text, counted in Unicode characters;
the end one is the first behind it."""


class Outcome(StrEnum):
    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """Nothing that counts as an answer was found; scored 0, but counted apart from WRONG."""
    FAULT = "fault"
    """The verifier itself failed. Says nothing about the response and has no score."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    score: float | None
    """Raw correctness in [0, 1], before any shaping; None if and only if the outcome is FAULT."""
    extracted: str | None = None
    """The answer as it was read from the response, before normalization."""
    detail: str = ""
    """Why, in one sentence."""
    seconds: float = 0.0
    """Wall clock spent on this verdict, waiting for a worker not included."""
    shaping: float = 0.0
    """Sum of format and length terms, to be added to the reward, never to the score; within MAX_SHAPING."""
    method: str = ""
    """How the answer was found ("boxed", "final_answer", ...); empty where a verifier does not extract."""
    is_repeatable: bool = True
    """Whether another run would end the same. False after a limit on time or memory, which a busy machine
    reaches sooner: such a verdict is never cached."""
    trace: str = ""
    """Last frames of the traceback of a verifier that raised."""
    turn_rewards: tuple[float, ...] | None = None
    """A reward for each turn that the model wrote, within MAX_SHAPING; None: none of their own. They and
    those of `spans` are on top of the reward, never of the score."""
    spans: tuple[Span, ...] = ()
    """Rewards for parts of the graded text, each within MAX_SHAPING."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Name -> reward of each thing that was judged, within MAX_SHAPING, where an advantage (gdpo), metrics
    and people are to see them apart. They change neither the score nor the reward."""

    def __post_init__(self) -> None:
        if (self.score is None) != (self.outcome is Outcome.FAULT):
            raise ValueError(
                "A verdict has no score exactly when its outcome is fault, but outcome is "
                f"{self.outcome.value!r} and score is {self.score!r}."
            )
        if self.score is not None:
            as_number(self.score, "score", 0.0, 1.0, hint=": put shaping into `shaping`")
        if self.outcome is Outcome.CORRECT and self.score == 0.0:
            raise ValueError("outcome is correct but score is 0: a correct response scores above 0.")
        as_number(self.shaping, "shaping", -MAX_SHAPING, MAX_SHAPING)
        as_number(self.seconds, "seconds", 0.0, math.inf)
        if self.turn_rewards is not None:
            object.__setattr__(self, "turn_rewards", as_turn_rewards(self.turn_rewards))
        object.__setattr__(self, "spans", as_spans(self.spans))
        object.__setattr__(self, "scores", as_scores(self.scores))

    def has_credits(self) -> bool:
        """Whether parts of the response have rewards of their own."""
        return bool(self.spans or self.turn_rewards)


def as_fields(verdict: Verdict) -> dict[str, Any]:
    """A storable verdict as JSON, for `from_fields`."""
    return {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}


def from_fields(fields: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**fields, "outcome": Outcome(fields["outcome"])})


def as_turn_rewards(value: object) -> tuple[float, ...]:
    """`value` as rewards of turns. Raises ValueError."""
    rewards = _as_list(value, "turn_rewards")
    return tuple(
        as_number(reward, f"turn_rewards[{i}]", -MAX_SHAPING, MAX_SHAPING) for i, reward in enumerate(rewards)
    )


def as_scores(value: object) -> dict[str, float]:
    """`value` as named scores. Raises ValueError."""
    if type(value) is dict and not value:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"scores is {value!r:.80}, expected an object of names and numbers.")
    if len(value) > MAX_SCORES:
        raise ValueError(f"scores has {len(value)} names, expected at most {MAX_SCORES}.")
    for name in value:
        is_name = isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()
        if not is_name:
            raise ValueError(
                f"scores has the name {name!r:.120}, expected 1 to {MAX_NAME_CHARACTERS} printable "
                f"characters."
            )
    return {
        str(name): as_number(score, f"scores[{name!r}]", -MAX_SHAPING, MAX_SHAPING)
        for name, score in value.items()
    }


def as_spans(value: object) -> tuple[Span, ...]:
    """`value` as spans. Raises ValueError."""
    if type(value) is tuple and not value:
        return ()
    return tuple(_as_span(span, f"spans[{i}]") for i, span in enumerate(_as_list(value, "spans")))


def _as_list(value: object, name: str) -> list[object]:
    """The members of a list, a tuple or an array."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise ValueError(f"{name} is {value!r:.80}, expected a list.")
    members: list[object] = []
    for member in value:
        if len(members) == MAX_CREDITS:
            raise ValueError(f"{name} has more than {MAX_CREDITS} entries.")
        members.append(member)
    return members


def _as_span(value: object, name: str) -> Span:
    parts = _as_list(value, name)
    if len(parts) != 3:
        raise ValueError(f"{name} is {value!r:.80}, expected (first character, end character, reward).")
    first, end = (_as_place(part, value, name) for part in parts[:2])
    if first >= end:
        raise ValueError(f"{name} is {value!r:.80}, whose end is not behind its first character.")
    return first, end, as_number(parts[2], f"the reward of {name}", -MAX_SHAPING, MAX_SHAPING)


def _as_place(part: object, span: object, name: str) -> int:
    """A whole number of characters: one of Python or numpy."""
    if not isinstance(part, bool) and hasattr(part, "__index__"):
        place = operator.index(part)
        if 0 <= place <= MAX_CHARACTERS:
            return place
    raise ValueError(f"{name} is {span!r:.80}, expected whole numbers of characters from 0.")


def as_number(value: object, name: str, least: float, most: float, *, hint: str = "") -> float:
    """`value` as a float, if it is a number in [least, most]: one of Python, numpy or torch, but neither text
    nor a truth value. Raises ValueError that names it `name`."""
    if type(value) is float and least <= value <= most:
        return value
    is_number = hasattr(value, "__float__") and not isinstance(value, bool)
    if is_number and "bool" not in str(getattr(value, "dtype", "")):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:
            raise ValueError(
                f"{name} is a number that no float holds, expected one in [{least:g}, {most:g}]{hint}."
            ) from None
        if least <= number <= most:
            return number
    raise ValueError(f"{name} is {value!r:.80}, expected a number in [{least:g}, {most:g}]{hint}.")


def correct(*, extracted: str | None = None, detail: str = "", method: str = "") -> Verdict:
    return Verdict(Outcome.CORRECT, 1.0, extracted=extracted, detail=detail, method=method)


def wrong(*, extracted: str | None = None, detail: str = "", method: str = "") -> Verdict:
    return Verdict(Outcome.WRONG, 0.0, extracted=extracted, detail=detail, method=method)


def over_limit(detail: str) -> Verdict:
    """WRONG because grading the response took more than it may, this time."""
    return Verdict(Outcome.WRONG, 0.0, detail=detail, is_repeatable=False)


def too_deep() -> Verdict:
    """WRONG because the response is nested deeper than Python recurses."""
    return wrong(detail="recursion limit: the response is nested too deeply")


def no_answer(detail: str) -> Verdict:
    return Verdict(Outcome.NO_ANSWER, 0.0, detail=detail)


def fault(detail: str) -> Verdict:
    return Verdict(Outcome.FAULT, None, detail=detail)


def weighted_sum(pairs: Iterable[tuple[float, float]], *, divisor: float = 1.0) -> float:
    """The float nearest to sum(weight * value) / divisor, each number taken as the decimal it is written as.

    `pairs` are (weight, value). NaN or infinite where one of them is.
    """
    pairs = list(pairs)
    if not all(math.isfinite(number) for pair in pairs for number in pair):
        return sum(weight * value for weight, value in pairs) / divisor
    total = sum((_exact(weight) * _exact(value) for weight, value in pairs), Fraction())
    try:
        return float(total / _exact(divisor))
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _exact(number: float) -> Fraction:
    return Fraction(repr(float(number)))
