"""The tree of a mathematical answer. Data only: immutable, compared by structure, without arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def _node(kind: type[_T]) -> type[_T]:
    """A dataclass that the type checker takes for a frozen one: frozen at run time, too, a node takes two
    to four times as long to make."""
    return dataclass(slots=True, unsafe_hash=True)(kind)


@_node
class Number:
    value: Fraction
    places: int | None = None
    """Digits after the point when it was written as a decimal; None for an integer, which is exact."""
    significant: int = 0
    """Significant digits as written, of a decimal."""
    open_ended: bool = False
    r"""Written with dots at the end (0.123\ldots): known to its digits only."""


@_node
class Based:
    """Digits in a base other than ten, 1011_2."""

    digits: str
    base: int


@_node
class Symbol:
    name: str


@_node
class Constant:
    name: str
    """pi, e, i or infinity."""


@_node
class Sum:
    terms: tuple[Node, ...]


@_node
class Product:
    factors: tuple[Node, ...]


@_node
class Quotient:
    top: Node
    bottom: Node


@_node
class Power:
    base: Node
    exponent: Node


@_node
class FunctionCall:
    name: str
    arguments: tuple[Node, ...]
    known: bool = True
    """False for the writer's own f(x)."""


@_node
class Bound:
    """A letter that an operation binds, by its height: 1 is bound by an operation with none inside it.

    So two operations that differ in the letter alone are the same node."""

    height: int


@_node
class Operation:
    """An operation on an expression in one letter.

    name         parts
    sum          first and last value of the letter, which is bound
    product      the same
    integral     lower and upper end, the letter bound; or the letter alone, free, of an antiderivative
    limit        the point, then 1, -1 or 0 for from above, from below, from both sides; bound
    derivative   the letter, free, and the order"""

    name: str
    body: Node
    parts: tuple[Node, ...]
    bound: Bound | None
    letter: str = field(default="", compare=False)
    """As it was written: n runs over integers, x over real numbers."""


@_node
class PlusMinus:
    value: Node
    flipped: bool
    r"""True for \mp."""


@_node
class Percent:
    value: Node


@_node
class Degrees:
    value: Node


@_node
class Relation:
    """A chain: sides[0] operators[0] sides[1] operators[1] ... with operators = < > <= >= != ~ in."""

    operators: tuple[str, ...]
    sides: tuple[Node, ...]


@_node
class Bracket:
    """Items between brackets: a tuple, a vector or an interval, which the comparison decides."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@_node
class Listing:
    """Bare items, joined by "," or "and" or "or" ("," when joiners are mixed with commas)."""

    items: tuple[Node, ...]
    joined_by: str


@_node
class SetOf:
    items: tuple[Node, ...]


@_node
class SetBuilder:
    element: Node
    condition: Node


@_node
class NamedSet:
    name: str
    """R, Q, Z, N, C or empty."""


@_node
class SetOperation:
    operator: str
    """union, intersection or difference."""
    left: Node
    right: Node


@_node
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@_node
class Ratio:
    items: tuple[Node, ...]


@_node
class Modulo:
    """A residue or a congruence, and its modulus."""

    value: Node
    modulus: Node


@_node
class Opaque:
    """A formula that we cannot read (a sum over divisors): equal only to itself, spelled alike."""

    spelling: str


@_node
class Piecewise:
    pieces: tuple[tuple[Node, Node], ...]


@_node
class Text:
    words: str
    """Lower case, single spaces, no punctuation at the ends."""


Node: TypeAlias = (
    Number | Based | Symbol | Constant | Sum | Product | Quotient | Power | FunctionCall | PlusMinus | Percent
    | Degrees | Relation | Bracket | Listing | SetOf | SetBuilder | NamedSet | SetOperation | Matrix | Ratio
    | Modulo | Opaque | Operation | Bound | Piecewise | Text
)  # fmt: skip

SETS = (NamedSet, SetOf, SetOperation, SetBuilder)
"""For isinstance: what is a set, whatever its members."""
