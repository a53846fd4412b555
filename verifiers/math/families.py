r"""Families of solutions: x = \pi/4 + k\pi, k \in \mathbb{Z}, in any letter and, over the integers, from any
member."""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from verifiers.math.arithmetic import real_fraction
from verifiers.math.names import is_name, spelled
from verifiers.math.nodes import (
    Listing,
    NamedSet,
    Node,
    Number,
    Product,
    Quotient,
    Relation,
    SetBuilder,
    Sum,
    Symbol,
)
from verifiers.math.numbers import NotNumber
from verifiers.math.scalars import same_scalar
from verifiers.math.solutions import pair_off
from verifiers.math.trees import difference, free_symbols, negative, replaced

_REAL_LETTERS = frozenset("xyzt")
_INTEGER_LETTERS = frozenset("ijklmnpqt")


@dataclass(frozen=True, slots=True)
class Family:
    name: str | None
    """The unknown, where it is named."""
    expressions: tuple[Node, ...]
    letter: str
    """The letter that runs through `numbers`."""
    numbers: NamedSet


def same_family(gold: Node, response: Node) -> bool:
    one, other = _family(gold), _family(response)
    if one is None or other is None or one.numbers != other.numbers:
        return False
    if one.name and other.name and one.name != other.name:
        return False
    if len(one.expressions) != len(other.expressions):
        return False
    return _same_renamed(one, other) or (one.numbers == NamedSet("Z") and _same_lattices(one, other))


def without_qualifier(gold: Node, response: Node) -> Node:
    r"""The k\pi of "k\pi, k is an integer" for a gold k\pi, which has the letter and does not say where it
    lives; else the whole response."""
    match response:
        case Listing((*items, Relation(("in",), (Symbol(letter), NamedSet(numbers))))) if items:
            is_usual = numbers == "R" or (numbers == "Z" and letter not in _REAL_LETTERS)
            if is_usual and letter in free_symbols(gold) and not _tells_of(gold, letter):
                return items[0] if len(items) == 1 else Listing(tuple(items), response.joined_by)
    return response


def _tells_of(gold: Node, letter: str) -> bool:
    """Whether the gold itself is about where the letter lives, or bounds it."""
    items = gold.items if isinstance(gold, Listing) else (gold,)
    return any(isinstance(item, Relation) and item.operators != ("=",) for item in items)


def _family(node: Node) -> Family | None:
    match node:
        case SetBuilder(element, Relation(("in",), (Symbol(letter), NamedSet() as numbers))):
            return _of_one_letter(None, (element,), letter, numbers)
        case Relation(("in",), (Symbol(name), SetBuilder() as members)):
            family = _family(members)
            return family and Family(name, family.expressions, family.letter, family.numbers)
        case Listing(items):
            return _family_of_items(items)
    return None


def _family_of_items(items: tuple[Node, ...]) -> Family | None:
    members: list[tuple[str, NamedSet]] = []
    names: set[str | None] = set()
    expressions: list[Node] = []
    for item in items:
        match item:
            case Relation(("in",), (Symbol(letter), NamedSet() as numbers)):
                members.append((letter, numbers))
            case Relation(("=",), (side, value)) if is_name(side):
                names.add(spelled(side))
                expressions.append(value)
            case Relation():
                return None
            case _:
                expressions.append(item)
    # x \in \mathbb{R} about the unknown itself says nothing next to k \in \mathbb{Z}.
    members = [member for member in members if member[0] not in names]
    if len(members) != 1 or not expressions or len(names) > 1:
        return None
    return _of_one_letter(names.pop() if names else None, tuple(expressions), *members[0])


def _of_one_letter(
    name: str | None, expressions: tuple[Node, ...], letter: str, numbers: NamedSet
) -> Family | None:
    runs = any(letter in free_symbols(expression) for expression in expressions)
    return Family(name, expressions, letter, numbers) if runs else None


def _same_renamed(one: Family, other: Family) -> bool:
    """Whether the expressions are equal with the letter of the one in place of the other's."""
    if one.letter != other.letter and any(one.letter in free_symbols(node) for node in other.expressions):
        return False
    old, new = Symbol(other.letter), Symbol(one.letter)
    renamed = tuple(replaced(node, old, new) for node in other.expressions)
    integers = frozenset((one.letter,)) if one.numbers.name[0] in "ZN" else frozenset()
    return pair_off(one.expressions, renamed, partial(same_scalar, integers=integers))


def _same_lattices(one: Family, other: Family) -> bool:
    lines = [_line(node, one.letter) for node in one.expressions]
    others = [_line(node, other.letter) for node in other.expressions]
    return None not in lines and None not in others and pair_off(lines, others, _same_lattice)


def is_class(node: Node, name: Node | None, residue: Fraction, modulus: Fraction) -> bool:
    """Whether the node is a class of residues: 7k + 3, x = 7k + 3, whether or not k is said to be whole."""
    match node:
        case Relation(("=",), (side, value)):
            return (name is None or side == name) and is_class(value, None, residue, modulus)
    family = _family(node)
    if family is not None and family.numbers == NamedSet("Z") and len(family.expressions) == 1:
        if family.name and name is not None and spelled(name) != family.name:
            return False
        expression, letter = family.expressions[0], family.letter
    else:
        letters = free_symbols(node)
        expression, letter = node, next(iter(letters), "")
        if len(letters) != 1 or letter not in _INTEGER_LETTERS:
            return False
    line = _line(expression, letter)
    return line is not None and _same_lattice(line, (Number(residue), Number(modulus)))


_Line = tuple[Node, Node]
"""(start, step) of start + step * letter."""


def _line(node: Node, letter: str) -> _Line | None:
    """The line that the node is for all whole numbers; None when it is none."""
    start, second = (replaced(node, Symbol(letter), Number(Fraction(at))) for at in (0, 1))
    step = difference(second, start)
    if free_symbols(start) or same_scalar(step, Number(Fraction(0))):
        return None
    line = Sum((start, Product((step, Symbol(letter)))))
    return (start, step) if same_scalar(node, line, integers=frozenset((letter,))) else None


def _same_lattice(one: _Line | None, other: _Line | None) -> bool:
    assert one is not None and other is not None
    (start, step), (other_start, other_step) = one, other
    if not (same_scalar(step, other_step) or same_scalar(step, negative(other_step))):
        return False
    try:
        shift = round(real_fraction(Quotient(difference(start, other_start), step), digits=40))
    except NotNumber:
        return False
    return same_scalar(start, Sum((other_start, Product((Number(Fraction(shift)), step)))))
