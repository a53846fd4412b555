r"""Shorthands written out: a \pm b becomes two items, "no solution" and "all real numbers" become sets."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from verifiers.math.nodes import (
    SETS,
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
from verifiers.math.number_words import number_in_words
from verifiers.math.trees import INFINITY, has_plus_minus, negative, rebuilt
from verifiers.math.words import ALL_REALS, NO_SOLUTION


def expand(node: Node) -> Node:
    match node:
        case Text(words):
            return _named_by_words(words) or node
        case Listing(items, joined_by):
            return Listing(_expanded(items), joined_by)
        case SetOf(items):
            return SetOf(_expanded(items))
        case SetBuilder():
            return replace(node, condition=expand(node.condition))
        case Sum((NamedSet() | SetOf() | SetOperation() | SetBuilder() as left, Product((_, right)))) if (
            isinstance(right, SETS)
        ):
            # \mathbb{R} - \{0\}
            return SetOperation("difference", left, right)
    if not has_plus_minus(node):
        return _scaled_matrix(node)
    # x = \pm 2 is one or the other; x \ne \pm 2 is neither.
    excludes = isinstance(node, Relation) and node.operators == ("!=",)
    return Listing((_with_sign(node, 1), _with_sign(node, -1)), "and" if excludes else "or")


def _expanded(items: tuple[Node, ...]) -> tuple[Node, ...]:
    found: list[Node] = []
    for item in map(expand, items):
        found.extend(item.items if isinstance(item, Listing) else (item,))
    return tuple(found)


def _scaled_matrix(node: Node) -> Node:
    """A number times a matrix, or a matrix over a number, entry by entry."""
    match node:
        case Quotient(Matrix() as matrix, bottom):
            return _each_entry(matrix, lambda entry: Quotient(entry, bottom))
        case Product(factors):
            matrices = [factor for factor in factors if isinstance(factor, Matrix)]
            if len(matrices) == 1:
                scalars = tuple(factor for factor in factors if factor is not matrices[0])
                return _each_entry(matrices[0], lambda entry: Product((*scalars, entry)))
    return node


def _each_entry(matrix: Matrix, change: Callable[[Node], Node]) -> Matrix:
    return Matrix(tuple(tuple(change(entry) for entry in row) for row in matrix.rows))


def _named_by_words(words: str) -> Node | None:
    if words in NO_SOLUTION:
        return NamedSet("empty")
    if words in ("infinity", "positive infinity"):
        return INFINITY
    if words in ("negative infinity", "minus infinity"):
        return negative(INFINITY)
    if words in ALL_REALS:
        return NamedSet("R")
    number = number_in_words(words)
    return None if number is None else Number(Fraction(number))


def _with_sign(node: Node, sign: int) -> Node:
    """The tree with each \\pm read as `sign` and each \\mp as its opposite."""
    if not isinstance(node, PlusMinus):
        return rebuilt(node, lambda part: _with_sign(part, sign))
    inner = _with_sign(node.value, sign)
    return inner if (sign > 0) is not node.flipped else negative(inner)
