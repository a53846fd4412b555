r"""Shorthands written out: a \pm b becomes two items, words of the empty set and of all numbers become those sets."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from verifiers.math.nodes import Constant, Listing, NamedSet, Node, Number, PlusMinus, Product, Relation, SetOf, Text
from verifiers.math.words import ALL_REALS, NO_SOLUTION

__all__ = ["expand"]


def expand(node: Node) -> Node:
    if isinstance(node, Text):
        return _named_by_words(node)
    if isinstance(node, Listing):
        items: list[Node] = []
        for item in node.items:
            expanded = expand(item)
            items.extend(expanded.items if isinstance(expanded, Listing) else (expanded,))
        return Listing(tuple(items), node.joined_by)
    if isinstance(node, SetOf):
        inner = expand(Listing(node.items, ","))
        assert isinstance(inner, Listing)
        return SetOf(inner.items)
    if not _has_sign(node):
        return node
    return Listing((_with_sign(node, 1), _with_sign(node, -1)), "or")


def _named_by_words(node: Text) -> Node:
    if node.words in NO_SOLUTION:
        return NamedSet("empty")
    if node.words in ("infinity", "positive infinity", "negative infinity", "minus infinity"):
        infinity = Constant("infinity")
        return infinity if node.words in ("infinity", "positive infinity") else _negative(infinity)
    return NamedSet("R") if node.words in ALL_REALS else node


def _has_sign(node: Any) -> bool:
    if isinstance(node, PlusMinus):
        return True
    if isinstance(node, tuple):
        return any(_has_sign(item) for item in node)
    return hasattr(node, "__dataclass_fields__") and any(
        _has_sign(getattr(node, field.name)) for field in fields(node)
    )


def _with_sign(node: Any, sign: int) -> Any:
    """The tree with each \\pm read as `sign` and each \\mp as its opposite."""
    if isinstance(node, PlusMinus):
        inner = _with_sign(node.value, sign)
        positive = (sign > 0) is not node.flipped
        return inner if positive else _negative(inner)
    if isinstance(node, tuple):
        return tuple(_with_sign(item, sign) for item in node)
    if isinstance(node, Relation) or hasattr(node, "__dataclass_fields__"):
        changed = {field.name: _with_sign(getattr(node, field.name), sign) for field in fields(node)}
        return replace(node, **changed)
    return node


def _negative(node: Node) -> Node:
    if isinstance(node, Number):
        return replace(node, value=-node.value)
    return Product((Number(Fraction(-1)), node))
