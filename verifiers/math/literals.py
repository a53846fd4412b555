"""Numbers as they are written: literals, digit by digit exact, repeating decimals, mixed numbers, bases."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from verifiers.math.nodes import Based, Node, Number, Quotient, Sum
from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import FRACTIONS

if TYPE_CHECKING:
    from verifiers.math.primary import PrimaryParser

__all__ = ["read_based", "read_literal", "read_number"]


def read_literal(parser: PrimaryParser) -> Node:
    node = read_number(parser.advance())
    repeating = _repeating_part(parser, node)
    if repeating is not None:
        return repeating
    if parser.here.value in (r"\ldots", r"\dots", "...", r"\cdots") and node.places is not None:
        parser.advance()
        return Number(node.value, node.places, node.significant, open_ended=True)
    return _mixed(parser, node) if node.places is None else node


def _repeating_part(parser: PrimaryParser, node: Number) -> Node | None:
    r"""0.1\overline{6}, 0.\dot{3}: the exact fraction."""
    if parser.is_operator(".") and parser.peek().value in (r"\overline", r"\bar", r"\dot"):
        parser.advance()
        node = Number(node.value, 0)
    if node.places is None or parser.here.value not in (r"\overline", r"\bar", r"\dot"):
        return None
    parser.advance()
    digits = parser.raw_argument()
    if parser.is_operator(r"\dot"):
        raise Unreadable("dots over two digits")
    if not digits.isdecimal() or not digits.isascii():
        raise Unreadable(f"a repeating part {digits!r}")
    scale = 10**node.places
    return Number(node.value + Fraction(int(digits), scale * (10 ** len(digits) - 1)))


def _mixed(parser: PrimaryParser, whole: Number) -> Node:
    r"""2\frac{1}{2} and 2 1/2: a whole number and a proper fraction of literal integers, added."""
    if parser.here.value in FRACTIONS:
        at, here, saved = parser.at, parser.here, list(parser.tokens[parser.at : parser.at + 4])
        fraction = parser.primary()
        if _is_proper(fraction):
            return Sum((whole, fraction))
        parser.tokens[at : at + 4] = saved
        parser.at, parser.here = at, here
        return whole
    top, slash, bottom = parser.here, parser.peek(), parser.peek(2)
    if top.spaced and top.value.isdecimal() and slash.value == "/" and bottom.value.isdecimal():
        fraction = Quotient(Number(Fraction(int(top.value))), Number(Fraction(int(bottom.value))))
        if _is_proper(fraction) and parser.peek(3).value not in ("^", "!", "/"):
            for _ in range(3):
                parser.advance()
            return Sum((whole, fraction))
    return whole


def read_based(parser: PrimaryParser, number: Number) -> Node:
    base = parser.raw_argument().strip("()")
    words = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
             "ten": 10,
             "twelve": 12, "sixteen": 16}  # fmt: skip
    value = int(base) if base.isdecimal() and len(base) < 3 else words.get(base)
    if value is None or number.places is not None or not 2 <= value <= 36:
        raise Unreadable(f"a number with the subscript {base!r}")
    return Based(str(number.value), value)


def read_number(token: Token) -> Number:
    """The exact value of a literal, with the digits it was written with."""
    text = token.value
    mantissa, letter, exponent = text.lower().partition("e")
    if letter and abs(int(exponent)) > 5000:
        raise Unreadable(f"the exponent {exponent}")
    value = Fraction(mantissa) if len(mantissa) < 4500 else _refuse_long(mantissa)
    if letter:
        value *= Fraction(10) ** int(exponent)
    whole, point, decimals = mantissa.partition(".")
    if not point:
        return Number(value)
    significant = len((whole + decimals).lstrip("0")) or 1
    places = len(decimals) - (int(exponent) if letter else 0)
    return Number(value, max(places, 0), significant)


def _refuse_long(digits: str) -> Fraction:
    raise Unreadable(f"a number of {len(digits)} digits")


def _is_proper(node: Node) -> bool:
    if not isinstance(node, Quotient):
        return False
    top, bottom = node.top, node.bottom
    return (
        isinstance(top, Number) and isinstance(bottom, Number)
        and top.places is None and bottom.places is None
        and 0 < top.value < bottom.value
    )  # fmt: skip
