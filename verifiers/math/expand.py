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
    Symbol,
    Text,
)  # fmt: skip
from verifiers.math.scalars import walk
from verifiers.math.words import ALL_REALS, NO_SOLUTION, NUMBER_WORDS

__all__ = ["expand", "with_constant_of"]

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


def with_constant_of(gold: Node, response: Node) -> Node:
    """The response with its constant of integration spelled as in the gold: + c for + C."""
    constant = _added_constant(gold)
    other = _added_constant(response) if constant is not None else None
    if constant is None or other is None or constant == other:
        return response
    for node, own in ((gold, constant), (response, other)):
        names = [item.name for item in walk(node) if isinstance(item, Symbol)]
        # C once, and neither C nor a capital beside it, which would be a quantity: A + C.
        if names.count(own.name) > 1 or any(
            name.isupper() or name == "c" for name in names if name != own.name
        ):
            return response
    renamed: Node = _renamed(response, other, constant)
    return renamed


def _added_constant(node: Node) -> Symbol | None:
    """The + C at the end of an expression, or of what stands after the equals sign."""
    last = node.sides[-1] if isinstance(node, Relation) else node
    if not isinstance(last, Sum):
        return None
    found = (term for term in last.terms if isinstance(term, Symbol) and term.name in ("c", "C"))
    return next(found, None)


def _renamed(node: Any, old: Symbol, new: Symbol) -> Any:
    if node == old:
        return new
    if isinstance(node, tuple):
        return tuple(_renamed(item, old, new) for item in node)
    if hasattr(node, "__dataclass_fields__"):
        changed = {field.name: _renamed(getattr(node, field.name), old, new) for field in fields(node)}
        return replace(node, **changed)
    return node


def _negative(node: Node) -> Node:
    if isinstance(node, Number):
        return replace(node, value=-node.value)
    return Product((Number(Fraction(-1)), node))
