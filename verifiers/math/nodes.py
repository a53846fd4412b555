"""The tree of a mathematical answer. Data only: immutable, compared by structure, without arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    places: int | None = None
    """Digits after the point when it was written as a decimal; None for an integer, which is exact."""
    significant: int = 0
    """Significant digits as written, of a decimal."""
    open_ended: bool = False
    r"""Written with dots at the end (0.123\ldots): known to its digits only."""


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a base other than ten, 1011_2."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    name: str
    """pi, e, i or infinity."""


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Product:
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    top: Node
    bottom: Node


@dataclass(frozen=True, slots=True)
class Power:
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[Node, ...]
    known: bool = True
    """False for the writer's own f(x)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A letter that an operation binds, by its height: 1 is bound by an operation with none inside it.

    So two operations that differ in the letter alone are the same node."""

    height: int


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class PlusMinus:
    value: Node
    flipped: bool
    r"""True for \mp."""


@dataclass(frozen=True, slots=True)
class Percent:
    value: Node


@dataclass(frozen=True, slots=True)
class Degrees:
    value: Node


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain: sides[0] operators[0] sides[1] operators[1] ... with operators = < > <= >= != ~ in."""

    operators: tuple[str, ...]
    sides: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Bracket:
    """Items between brackets: a tuple, a vector or an interval, which the comparison decides."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Bare items, joined by "," or "and" or "or" ("," when joiners are mixed with commas)."""

    items: tuple[Node, ...]
    joined_by: str


@dataclass(frozen=True, slots=True)
class SetOf:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetBuilder:
    element: Node
    condition: Node


@dataclass(frozen=True, slots=True)
class NamedSet:
    name: str
    """R, Q, Z, N, C or empty."""


@dataclass(frozen=True, slots=True)
class SetOperation:
    operator: str
    """union, intersection or difference."""
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Modulo:
    """A residue or a congruence, and its modulus."""

    value: Node
    modulus: Node


@dataclass(frozen=True, slots=True)
class Opaque:
    """A formula that we cannot read (a sum over divisors): equal only to itself, spelled alike."""

    spelling: str


@dataclass(frozen=True, slots=True)
class Piecewise:
    pieces: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True)
class Text:
    words: str
    """Lower case, single spaces, no punctuation at the ends."""


Node: TypeAlias = (
    Number | Based | Symbol | Constant | Sum | Product | Quotient | Power | Call | PlusMinus | Percent
    | Degrees | Relation | Bracket | Listing | SetOf | SetBuilder | NamedSet | SetOperation | Matrix | Ratio
    | Modulo | Opaque | Operation | Bound | Piecewise | Text
)  # fmt: skip

SETS = (NamedSet, SetOf, SetOperation, SetBuilder)
"""For isinstance: what is a set, whatever its members."""
