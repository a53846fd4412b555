r"""Families of solutions: x = \pi/4 + k\pi, k \in \mathbb{Z}, in any letter and, over the integers, from any
member."""

from dataclasses import dataclass
from fractions import Fraction

from verifiers.math.arithmetic import NotNumber, real_fraction
from verifiers.math.matching import pair_off
from verifiers.math.names import is_name, spelled
from verifiers.math.nodes import Listing, NamedSet, Node, Relation, SetBuilder, Symbol
from verifiers.math.scalars import same_scalar
from verifiers.math.trees import free_symbols, replaced

_REAL_LETTERS = frozenset("xyzt")


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
    return pair_off(one.expressions, renamed, same_scalar)


def _same_lattices(one: Family, other: Family) -> bool:
    lines = [_line(node, one.letter) for node in one.expressions]
    others = [_line(node, other.letter) for node in other.expressions]
    return None not in lines and None not in others and pair_off(lines, others, _same_lattice)


def _line(node: Node, letter: str) -> tuple[Fraction, Fraction] | None:
    """(start, step) of start + step * letter, to 40 digits; None when it is no such line."""
    try:
        values = [real_fraction(node, {letter: Fraction(x)}, digits=40) for x in (0, 1, 2, 5)]
    except NotNumber:
        return None
    step = values[1] - values[0]
    straight = _near(values[2], values[0] + 2 * step) and _near(values[3], values[0] + 5 * step)
    return (values[0], step) if straight and step else None


def _near(one: Fraction, other: Fraction) -> bool:
    return abs(one - other) <= Fraction(1, 10**25) * max(Fraction(1), abs(one))


def _same_lattice(one: tuple[Fraction, Fraction] | None, other: tuple[Fraction, Fraction] | None) -> bool:
    assert one is not None and other is not None
    if not _near(abs(one[1]), abs(other[1])):
        return False
    shift = (one[0] - other[0]) / one[1]
    return _near(shift, Fraction(round(shift)))
