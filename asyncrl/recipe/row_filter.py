"""Conditions on the columns of a row, as data.filter writes them: "pass_rate in [0.05, 0.95] and level < 4".

filter     conditions joined by `and`: all of them hold
condition  COLUMN in [LOW, HIGH]     a number, both ends included
           COLUMN in {A, B, ...}     one of these numbers or texts
           COLUMN < NUMBER           also <=, >, >=
           COLUMN == VALUE           also !=; a number, "text", true or false
COLUMN     a name, with dots for what is inside; in quotes if it has other characters
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from asyncrl.system.words import as_written

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
    |(?P<text>"(?:[^"\\]|\\.)*"|'[^']*')
    |(?P<name>[^\W\d][\w.]*)
    |(?P<sign><=|>=|==|!=|[<>\[\]{},]))""",
    re.VERBOSE,
)
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EXAMPLE = 'such as "pass_rate in [0.05, 0.95]" or "level < 4 and source == \\"web\\""'

Value = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Condition:
    column: str
    sign: str
    """in [], in {}, or a comparison."""
    operands: tuple[Value, ...]

    def holds(self, value: Any) -> bool:
        """False for null, and for the NaN by which tables say it. Raises ValueError for a value of a kind
        that cannot be compared so."""
        if value is None or value != value:
            return False
        if self.sign in ("==", "!=", "in {}"):
            return any(_is_same(value, each) for each in self.operands) == (self.sign != "!=")
        if not _is_number(value):
            raise ValueError(
                f'"{self.column}" is {as_written(value)[:80]}, expected a number, which data.filter compares'
            )
        if self.sign == "in []":
            low, high = self.operands
            return bool(low <= value <= high)
        return _ORDERS[self.sign](value, self.operands[0])


@dataclass(frozen=True, slots=True)
class RowFilter:
    conditions: tuple[Condition, ...]

    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(condition.column for condition in self.conditions))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether a row with these `columns` is kept. Raises ValueError."""
        return all(condition.holds(values[condition.column]) for condition in self.conditions)


def parse_filter(text: str) -> RowFilter:
    """Raises ValueError with the place where `text` stops making sense."""
    return _Parser(text).parse()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_same(value: Any, operand: Value) -> bool:
    """As JSON sees it: 1 is 1.0, but not true and not "1"."""
    if _is_number(operand):
        return _is_number(value) and value == operand
    return type(value) is type(operand) and value == operand


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind, self._word = "", ""
        self._advance()

    def parse(self) -> RowFilter:
        conditions = [self._condition()]
        while self._word == "and" and self._kind == "name":
            self._advance()
            conditions.append(self._condition())
        if self._kind:
            self._fail('"and", or the end')
        return RowFilter(tuple(conditions))

    def _condition(self) -> Condition:
        if self._kind != "text" and (self._kind != "name" or self._word in ("and", "in")):
            self._fail("the name of a column")
        column, sign = str(self._taken()), self._word
        if sign == "in" and self._kind == "name":
            self._advance()
            return self._membership(column)
        if self._kind != "sign" or sign not in (*_ORDERS, "==", "!="):
            self._fail("in, <, <=, >, >=, == or !=")
        self._advance()
        return Condition(column, sign, (self._number() if sign in _ORDERS else self._value(),))

    def _membership(self, column: str) -> Condition:
        if self._word == "[":
            self._advance()
            low = self._number()
            self._expect(",")
            high = self._number()
            self._expect("]")
            if low > high:
                raise ValueError(
                    f'data.filter is {self._text!r}, whose range of "{column}" is empty: {low:g} is above '
                    f"{high:g}. Swap the two."
                )
            return Condition(column, "in []", (low, high))
        if self._word != "{":
            self._fail("[LOW, HIGH] or {A, B, ...}")
        self._advance()
        found = [self._value()]
        while self._word == ",":
            self._advance()
            found.append(self._value())
        self._expect("}")
        return Condition(column, "in {}", tuple(found))

    def _number(self) -> float:
        if self._kind != "number":
            self._fail("a number")
        return float(self._taken())

    def _value(self) -> Value:
        if self._kind in ("number", "text") or (self._kind, self._word) in (
            ("name", "true"),
            ("name", "false"),
        ):
            return self._taken()
        self._fail('a number, a "text" in quotes, true or false')

    def _expect(self, sign: str) -> None:
        if self._kind != "sign" or self._word != sign:
            self._fail(sign)
        self._advance()

    def _taken(self) -> Value:
        kind, word = self._kind, self._word
        value: Value = word
        if kind == "number":
            value = float(word)
        elif kind == "name" and word in ("true", "false"):
            value = word == "true"
        self._advance()
        return value

    def _advance(self) -> None:
        rest = self._text[self._at :]
        if not rest.strip():
            self._kind, self._word = "", ""
            return
        found = _TOKEN.match(rest)
        if found is None or found.lastgroup is None:
            self._kind, self._word = "?", rest.strip()
            return
        self._at += found.end()
        self._kind, self._word = found.lastgroup, found[found.lastgroup]
        if self._kind == "text":
            self._word = self._unquoted(self._word)

    def _unquoted(self, word: str) -> str:
        try:
            return word[1:-1] if word[0] == "'" else str(json.loads(word))
        except ValueError as error:
            raise ValueError(f"data.filter is {self._text!r}, in which {word} is no text: {error}") from error

    def _fail(self, expected: str) -> NoReturn:
        found = f"at {self._word[:40]!r}" if self._kind else "at its end"
        raise ValueError(f"data.filter is {self._text!r}: {found}, expected {expected}; {EXAMPLE}.")
