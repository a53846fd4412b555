"""Countdown: an equation that makes a target out of given numbers, each used exactly once.

The answer in <answer>...</answer> is read by a tokenizer and parser of its own and computed in exact
fractions. Nothing of a response is evaluated as code, and no power, no decimal and no glued digits can stand
in for a number that is not there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from verifiers.extract import Think, final_part
from verifiers.plugins import Bounds
from verifiers.verdict import Outcome, Verdict, correct, no_answer

MAX_NUMBERS = 16
MAX_CHARACTERS = 300
"""Length of an equation: more than MAX_NUMBERS numbers need, but safe for a recursive parser."""
_TOKENS = re.compile(r"[ \t\n]*(?:(0|[1-9][0-9]{0,17})(?![0-9])|([-+*/()]))")


@dataclass(frozen=True, slots=True)
class CountdownReference:
    target: int
    numbers: tuple[int, ...]
    """Sorted."""


class CountdownVerifier:
    """The last <answer> holds +, -, *, / and parentheses over the gold's numbers, and equals its target.

    The gold is {"target": 24, "numbers": [1, 2, 3, 4]}."""

    def __init__(
        self, *, think: Think = "optional", format_reward: Annotated[float, Bounds(0, 1)] = 0.0
    ) -> None:
        """`format_reward`: shaping of a wrong answer that stands in its tags (TinyZero: 0.1)."""
        self._think = think
        self._format_reward = format_reward

    def parse_reference(self, raw: object) -> CountdownReference:
        wanted = 'an object such as {"target": 24, "numbers": [1, 2, 3, 4]}'
        if not isinstance(raw, Mapping) or not raw.keys() >= {"target", "numbers"}:
            raise ValueError(f"The gold is {raw!r}, expected {wanted}.")
        target, numbers = raw["target"], raw["numbers"]
        if not isinstance(numbers, (list, tuple)) or not 1 <= len(numbers) <= MAX_NUMBERS:
            raise ValueError(f"numbers of the gold is {numbers!r}, expected 1 to {MAX_NUMBERS} numbers.")
        for value in (target, *numbers):
            if type(value) is not int or not 0 <= value < 10**18:
                raise ValueError(f"The gold is {raw!r}, expected whole numbers from 0 on in {wanted}.")
        return CountdownReference(target, tuple(sorted(numbers)))

    def verify(self, response: str, reference: CountdownReference) -> Verdict:
        text, reason = final_part(response, think=self._think)
        if text is None:
            return no_answer(reason)
        answer = _tagged(text)
        if answer is None:
            return no_answer("no <answer>...</answer> with an equation")
        shown = answer[:MAX_CHARACTERS]
        try:
            problem = _problem(answer, reference)
        except NotAnEquation as error:
            problem = str(error)
        if problem:
            return Verdict(
                Outcome.WRONG,
                0.0,
                extracted=shown,
                detail=problem,
                shaping=self._format_reward,
                method="answer_tag",
            )
        return correct(extracted=shown, detail="equals the target", method="answer_tag")

    def verify_fast(self, response: str, reference: CountdownReference) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 20_000 else None


def _tagged(text: str) -> str | None:
    """Content of the last <answer>, character for character; None where it never closes."""
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    return None if start < 0 or end < 0 else text[start + len("<answer>") : end]


class NotAnEquation(ValueError):
    """The text is no expression over whole numbers, or has no value."""


def read_numbers(expression: str) -> list[int]:
    """The whole numbers of an expression, in their order. Raises NotAnEquation."""
    return [token for token in _tokens(expression) if isinstance(token, int)]


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression. Raises NotAnEquation."""
    return _Parser(_tokens(expression)).value()


def _problem(answer: str, reference: CountdownReference) -> str:
    """The error in the answer; "" when there is none. Raises NotAnEquation."""
    tokens = _tokens(answer)
    used = sorted(token for token in tokens if isinstance(token, int))
    # Before anything is computed: a response chooses how large its numbers are.
    if tuple(used) != reference.numbers:
        return f"uses the numbers {used}, expected each of {list(reference.numbers)} once"
    value = _Parser(tokens).value()
    return "" if value == reference.target else f"equals {value}, expected {reference.target}"


def _tokens(text: str) -> list[int | str]:
    """Whole numbers and the signs + - * / ( )."""
    text = text.strip(" \t\n")
    if len(text) > MAX_CHARACTERS:
        raise NotAnEquation(f"has more than {MAX_CHARACTERS} characters")
    tokens: list[int | str] = []
    position = 0
    while position < len(text):
        found = _TOKENS.match(text, position)
        if found is None:
            raise NotAnEquation(f"cannot be read from {text[position : position + 20]!r} on")
        tokens.append(int(found[1]) if found[1] else found[2])
        position = found.end()
    return tokens


class _Parser:
    """sum: product ((+|-) product)*; product: factor ((*|/) factor)*; factor: (+|-)* (number | (sum))."""

    def __init__(self, tokens: list[int | str]) -> None:
        self._tokens = tokens
        self._next = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._next < len(self._tokens):
            raise NotAnEquation(f"has {self._tokens[self._next]!r} where an operation was expected")
        return value

    def _take(self, *signs: str) -> str:
        """The next token if it is one of `signs`, else ""."""
        if self._next < len(self._tokens) and self._tokens[self._next] in signs:
            self._next += 1
            return str(self._tokens[self._next - 1])
        return ""

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = value + other if sign == "+" else value - other
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while sign := self._take("*", "/"):
            other = self._factor()
            if sign == "/" and other == 0:
                raise NotAnEquation("divides by zero")
            value = value * other if sign == "*" else value / other
        return value

    def _factor(self) -> Fraction:
        is_negative = False
        while sign := self._take("+", "-"):
            is_negative ^= sign == "-"
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise NotAnEquation("has an open parenthesis")
        elif self._next < len(self._tokens) and isinstance(token := self._tokens[self._next], int):
            value = Fraction(token)
            self._next += 1
        else:
            raise NotAnEquation("lacks a number")
        return -value if is_negative else value
