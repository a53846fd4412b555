"""Countdown: an equation that makes a target out of given numbers, each used exactly once.

The answer in <answer>...</answer> is read by a tokenizer of its own, which knows whole numbers and six signs,
and computed in exact fractions. Nothing of a response is evaluated as code, and no power, no decimal and no
glued digits can stand in for a number that is not there.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from verifiers.extract import Think, final_part
from verifiers.plugins import Bounds
from verifiers.verdict import Outcome, Verdict, correct, no_answer

MAX_NUMBERS = 16
MAX_CHARACTERS = 300
"""Length of an equation: more than MAX_NUMBERS numbers need, but safe for a recursive parser."""
_OPERATIONS: dict[type, Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_TOKENS = re.compile(r"[ \t\n]*(?:(0|[1-9][0-9]{0,17})(?![0-9])|([-+*/()]))")


@dataclass(frozen=True, slots=True)
class CountdownReference:
    target: int
    numbers: tuple[int, ...]
    """Sorted."""


@dataclass(frozen=True, kw_only=True)
class CountdownVerifier:
    """The last <answer> holds +, -, *, / and parentheses over the gold's numbers, and equals its target.

    The gold is {"target": 24, "numbers": [1, 2, 3, 4]}."""

    think: Think = "optional"
    format_reward: Annotated[float, Bounds(0, 1)] = 0.0
    """Shaping of a wrong answer that stands in its tags (TinyZero: 0.1)."""

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
        text, reason = final_part(response, think=self.think)
        if text is None:
            return no_answer(reason)
        # The last one, character for character; none where it never closes.
        start = text.rfind("<answer>")
        end = text.find("</answer>", start)
        if start < 0 or end < 0:
            return no_answer("no <answer>...</answer> with an equation")
        answer = text[start + len("<answer>") : end]
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
                shaping=self.format_reward,
                method="answer_tag",
            )
        return correct(extracted=shown, detail="equals the target", method="answer_tag")

    def verify_fast(self, response: str, reference: CountdownReference) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 20_000 else None


class NotAnEquation(ValueError):
    """The text is no expression over whole numbers, or has no value."""


def read_numbers(expression: str) -> list[int]:
    """The whole numbers of an expression, in their order. Raises NotAnEquation."""
    return [token for token in _tokens(expression) if isinstance(token, int)]


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression. Raises NotAnEquation."""
    return _value(_tokens(expression))


def _problem(answer: str, reference: CountdownReference) -> str:
    """The error in the answer; "" when there is none. Raises NotAnEquation."""
    tokens = _tokens(answer)
    used = sorted(token for token in tokens if isinstance(token, int))
    # Before anything is computed: a response chooses how large its numbers are.
    if tuple(used) != reference.numbers:
        return f"uses the numbers {used}, expected each of {list(reference.numbers)} once"
    value = _value(tokens)
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


def _value(tokens: list[int | str]) -> Fraction:
    """The exact value of an expression. Raises NotAnEquation."""
    try:
        # With spaces, so that neither two signs nor two numbers become another one.
        return _computed(ast.parse(" ".join(map(str, tokens)), mode="eval").body)
    except ZeroDivisionError:
        raise NotAnEquation("divides by zero") from None
    except SyntaxError as error:
        raise NotAnEquation(f"is no expression: {error.msg}") from None


def _computed(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(int(number)):
            return Fraction(number)
        case ast.UnaryOp(sign, operand) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](_computed(operand))
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](_computed(left), _computed(right))
    raise NotAnEquation("lacks a number or a sign between two numbers")
