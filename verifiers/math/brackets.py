"""Everything that opens and closes: groups, tuples, intervals, sets, bars, floors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from verifiers.math.nodes import Bracket, Call, Listing, NamedSet, Node, Relation, SetBuilder, SetOf
from verifiers.math.tokens import Unreadable

if TYPE_CHECKING:
    from verifiers.math.primary import PrimaryParser

__all__ = ["BRACKETS", "read_braces", "read_round"]


def read_round(parser: PrimaryParser) -> Node:
    parser.expect("(")
    return _bracket(parser, "(", (")", "]"))


def _square(parser: PrimaryParser) -> Node:
    parser.expect("[")
    return _bracket(parser, "[", ("]", ")", "["))


def _outward(parser: PrimaryParser) -> Node:
    """]1, 2[: an open interval, in the French way."""
    parser.expect("]")
    node = _bracket(parser, "]", ("[", "]"))
    if not isinstance(node, Bracket):
        raise Unreadable("a lone ]")
    return Bracket("(", ")" if node.closing == "[" else "]", node.items)


def _angle(parser: PrimaryParser) -> Node:
    parser.advance()
    items = _items(parser.group(parser.listing))
    parser.expect(r"\rangle")
    return Bracket("<", ">", items)


def _bracket(parser: PrimaryParser, opening: str, closings: tuple[str, ...]) -> Node:
    parser.brackets += 1
    inner = parser.group(parser.listing)
    parser.brackets -= 1
    closing = parser.here.value
    if closing not in closings or parser.here.kind != "operator":
        raise Unreadable(f"expected {closings[0]!r}, found {closing or 'the end'!r}")
    parser.advance()
    if opening != "]" and closing == "[":
        closing = ")"
    if not isinstance(inner, Listing):
        if (opening, closing) not in (("(", ")"), ("[", "]")):
            raise Unreadable(f"brackets {opening} and {closing} around one thing")
        return inner
    if inner.joined_by != ",":
        raise Unreadable(f"a bracket with {inner.joined_by!r} in it")
    return Bracket(opening, closing, inner.items)


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Listing) else (node,)


def _set(parser: PrimaryParser) -> Node:
    parser.expect(r"\{")
    if parser.is_operator(r"\}"):
        parser.advance()
        return NamedSet("empty")
    ratio, parser.colon_is_ratio = parser.colon_is_ratio, False
    inner = parser.group(parser.listing, bars=1)
    condition: Node | None = None
    if parser.is_operator(r"\mid") or parser.is_operator("|") or parser.is_operator(":"):
        parser.advance()
        condition = parser.group(parser.listing)
    parser.colon_is_ratio = ratio
    parser.expect(r"\}")
    if condition is None:
        return SetOf(_items(inner))
    if isinstance(inner, Relation) and inner.operators == ("in",):
        # {x \in R | x > 2}: where x lives is one more condition.
        if inner.sides[1] != NamedSet("R"):
            condition = Listing((inner, *_items(condition)), "and")
        inner = inner.sides[0]
    return SetBuilder(inner, condition)


def _bars(parser: PrimaryParser) -> Node:
    """|x|: the absolute value. Inside, the next bar at this level closes."""
    opening = parser.advance().value
    closing = {"|": "|", r"\lvert": r"\rvert", r"\|": r"\|", r"\lVert": r"\rVert", r"\vert": r"\vert"}[
        opening
    ]
    inner = parser.group(parser.sum, bars=parser.bars + (opening == "|"))
    parser.expect(closing)
    return Call("abs", (inner,))


def _rounded(parser: PrimaryParser) -> Node:
    opening = parser.advance().value
    name, closing = {r"\lfloor": ("floor", r"\rfloor"), r"\lceil": ("ceiling", r"\rceil")}[opening]
    inner = parser.group(parser.sum)
    parser.expect(closing)
    return Call(name, (inner,))


def read_braces(parser: PrimaryParser) -> Node:
    parser.expect("{")
    node = parser.group(parser.whole)
    parser.expect("}")
    return node


BRACKETS: dict[str, Callable[[PrimaryParser], Node]] = {
    "(": read_round,
    "[": _square,
    "]": _outward,
    "{": read_braces,
    "|": _bars,
    r"\langle": _angle,
    r"\{": _set,
    r"\lvert": _bars,
    r"\lVert": _bars,
    r"\|": _bars,
    r"\lfloor": _rounded,
    r"\lceil": _rounded,
}
