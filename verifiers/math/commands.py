r"""LaTeX commands with arguments of their own: \frac, \sqrt, \binom, \mathbb and what else builds a node."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from verifiers.math.calculus import CALCULUS, read_derivative
from verifiers.math.environments import read_environment
from verifiers.math.names import read_letter, read_root
from verifiers.math.nodes import (
    Bracket,
    Call,
    Constant,
    NamedSet,
    Node,
    Number,
    Quotient,
    SetOf,
    SetOperation,
    Symbol,
)
from verifiers.math.tokens import Unreadable
from verifiers.math.words import FRACTIONS, NAMED_SETS

if TYPE_CHECKING:
    from verifiers.math.primary import PrimaryParser

__all__ = ["COMMANDS"]

_BINOMIALS = (r"\binom", r"\dbinom", r"\tbinom")


def _sqrt(parser: PrimaryParser) -> Node:
    parser.advance()
    return read_root(parser) if parser.is_operator("[") else Call("sqrt", (parser.argument(),))


def _fraction(parser: PrimaryParser) -> Node:
    parser.advance()
    derivative = read_derivative(parser)
    if derivative is not None:
        return derivative
    top = parser.single()
    return Quotient(top, parser.single())


def _binomial(parser: PrimaryParser) -> Node:
    parser.advance()
    top = parser.single()
    return Call("binomial", (top, parser.single()))


def _overline(parser: PrimaryParser) -> Node:
    parser.advance()
    name = parser.raw_argument()
    if not name.isalnum():
        raise Unreadable(f"a line over {name!r}")
    if name.isdecimal():
        raise Unreadable("a line over digits")
    return Symbol(f"overline {name}")


def _marked(parser: PrimaryParser) -> Node:
    r"""\angle ABC, \triangle ABC: one name."""
    mark = parser.advance().value[1:]
    if parser.here.kind not in ("word", "symbol"):
        raise Unreadable(f"a lone \\{mark}")
    return Symbol(f"{mark} {parser.advance().value}")


def _dotted(parser: PrimaryParser) -> Node:
    r"""\dot{x}, \ddot{\theta}: a name, with the subscript that follows."""
    mark = parser.advance().value[1:]
    name = parser.raw_argument().removeprefix("\\")
    if not name.isalpha():
        raise Unreadable(f"dots over {name!r}")
    return read_letter(parser, f"{mark} {name}")


def _blackboard(parser: PrimaryParser) -> Node:
    parser.advance()
    name = parser.raw_argument()
    if name not in NAMED_SETS:
        raise Unreadable(f"the set {name!r}")
    return _part_of_set(parser, NamedSet(NAMED_SETS[name]))


def _part_of_set(parser: PrimaryParser, whole: NamedSet) -> Node:
    r"""\mathbb{R}^+ and its kin."""
    if not (parser.is_operator("^") or parser.is_operator("_")):
        return whole
    parser.advance()
    mark = parser.raw_argument()
    zero, infinity = Number(Fraction(0)), Constant("infinity")
    if mark in ("*", r"\ast", r"\times") and whole.name == "R":
        return SetOperation("difference", whole, SetOf((zero,)))
    if mark in ("+", ">0") and whole.name == "R":
        return Bracket("(", ")", (zero, infinity))
    if mark in ("-", "<0") and whole.name == "R":
        return Bracket("(", ")", (parser.negative(infinity), zero))
    if mark in ("+", "-", "*") and whole.name in ("Z", "Q"):
        return NamedSet(whole.name + mark)
    raise Unreadable(f"the set with the mark {mark!r}")


def _empty_set(parser: PrimaryParser) -> Node:
    parser.advance()
    return NamedSet("empty")


def _environment(parser: PrimaryParser) -> Node:
    return parser.group(lambda: read_environment(parser))


COMMANDS: dict[str, Callable[[PrimaryParser], Node]] = {
    **dict.fromkeys(FRACTIONS, _fraction),
    **dict.fromkeys(_BINOMIALS, _binomial),
    r"\sqrt": _sqrt,
    r"\overline": _overline,
    r"\bar": _overline,
    r"\angle": _marked,
    r"\triangle": _marked,
    r"\mathbb": _blackboard,
    **dict.fromkeys((r"\dot", r"\ddot", r"\dddot"), _dotted),
    r"\emptyset": _empty_set,
    r"\varnothing": _empty_set,
    r"\begin": _environment,
    **CALCULUS,
}
