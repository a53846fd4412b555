r"""Shorthands written out: a \pm b becomes two items, words of the empty set and of all numbers become those
sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from verifiers.math.nodes import (
    Constant,
    Listing,
    Matrix,
    NamedSet,
    Node,
    Number,
    PlusMinus,
    Product,
    Quotient,
    Relation,
    SetBuilder,
    SetOf,
    SetOperation,
    Sum,
    Text,
)  # fmt: skip
from verifiers.math.words import ALL_REALS, NO_SOLUTION, NUMBER_WORDS

__all__ = ["expand"]

_SETS = (NamedSet, SetOf, SetOperation, SetBuilder)


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
    if isinstance(node, SetBuilder):
        return replace(node, condition=expand(node.condition))
    if isinstance(node, Sum) and (difference := _difference_of_sets(node)) is not None:
        return difference
    if not _has_sign(node):
        return _scaled_matrix(node)
    # x = \pm 2 is one or the other; x \ne \pm 2 is neither.
    excludes = isinstance(node, Relation) and node.operators == ("!=",)
    return Listing((_with_sign(node, 1), _with_sign(node, -1)), "and" if excludes else "or")


def _difference_of_sets(node: Sum) -> Node | None:
    r"""\mathbb{R} - \{0\}."""
    if len(node.terms) != 2 or not isinstance(node.terms[0], _SETS):
        return None
    second = node.terms[1]
    if isinstance(second, Product) and len(second.factors) == 2 and isinstance(second.factors[1], _SETS):
        return SetOperation("difference", node.terms[0], second.factors[1])
    return None


def _scaled_matrix(node: Node) -> Node:
    """A number times a matrix, or a matrix over a number, entry by entry."""
    if isinstance(node, Quotient) and isinstance(node.top, Matrix):
        bottom = node.bottom
        return _each_entry(node.top, lambda entry: Quotient(entry, bottom))
    if not isinstance(node, Product):
        return node
    matrices = [factor for factor in node.factors if isinstance(factor, Matrix)]
    if len(matrices) != 1:
        return node
    scalars = tuple(factor for factor in node.factors if factor is not matrices[0])
    return _each_entry(matrices[0], lambda entry: Product((*scalars, entry)))


def _each_entry(matrix: Matrix, change: Callable[[Node], Node]) -> Matrix:
    return Matrix(tuple(tuple(change(entry) for entry in row) for row in matrix.rows))


def _named_by_words(node: Text) -> Node:
    if node.words in NO_SOLUTION:
        return NamedSet("empty")
    if node.words in ("infinity", "positive infinity", "negative infinity", "minus infinity"):
        infinity = Constant("infinity")
        return infinity if node.words in ("infinity", "positive infinity") else _negative(infinity)
    if node.words in NUMBER_WORDS:
        return Number(Fraction(NUMBER_WORDS[node.words]))
    return NamedSet("R") if node.words in ALL_REALS else node


def _has_sign(node: Any) -> bool:
    if isinstance(node, PlusMinus):
        return True
    if isinstance(node, tuple):
        return any(_has_sign(item) for item in node)
    return hasattr(node, "__dataclass_fields__") and any(
        [_has_sign(getattr(node, name)) for name in node.__dataclass_fields__]
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
