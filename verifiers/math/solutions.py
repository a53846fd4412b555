r"""Lists of answers and solutions in several unknowns, in any order and under their labels; families of
solutions, x = \pi/4 + k\pi, k \in \mathbb{Z}, in any letter and, over the integers, from any member."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeVar

from verifiers.math.arithmetic import real_fraction
from verifiers.math.nodes import (
    Bracket,
    Listing,
    NamedSet,
    Node,
    Number,
    Product,
    Quotient,
    Relation,
    SetBuilder,
    SetOf,
    Sum,
    Symbol,
    Text,
)
from verifiers.math.numbers import NotNumber
from verifiers.math.scalars import same_scalar
from verifiers.math.trees import difference, free_symbols, is_name, negative, replaced, spelled

T = TypeVar("T")


def pair_off(wanted: Sequence[T], given: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """Whether both hold the same things. Equal things are equal, so taking the first match is safe."""
    left = list(given)
    for item in wanted:
        match = next((at for at, other in enumerate(left) if same(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


# The names before the items of a list: x = 1, x = 2 are values of one unknown, x = 1, y = 2 of two.


def plain_items(gold: Listing) -> tuple[Node, ...]:
    """x = 1, x = 2 without the repeated name."""
    labels = [item.sides[0] for item in gold.items if isinstance(item, Relation) and item.operators == ("=",)]
    if len(labels) == len(gold.items) and len(set(labels)) == 1 and is_name(labels[0]):
        return tuple(item.sides[-1] for item in gold.items if isinstance(item, Relation))
    return gold.items


def shared_names(listing: Listing) -> tuple[Node, ...]:
    """The items; "x = 1, 2" becomes x = 1, x = 2, and names that all agree are left out."""
    match listing.items:
        case (Relation(("=",), (name, value)), *rest) if is_name(name):
            if not any(isinstance(item, (Relation, Text)) for item in rest):
                return (value, *rest)
    return plain_items(listing)


def distinct_labels(items: tuple[Node, ...]) -> list[str]:
    """The distinct names of x = 1, y = 2; empty when the items are not such."""
    names = [
        item.sides[0].name
        for item in items
        if isinstance(item, Relation) and item.operators == ("=",) and isinstance(item.sides[0], Symbol)
    ]
    return names if len(names) == len(items) and len(set(names)) == len(names) else []


def unknowns(items: tuple[Node, ...]) -> set[str]:
    """The unknowns that have a value among the items, without numbers: x of x_1 = 1 and of x = 2."""
    named = [item for item in items if isinstance(item, Relation) and item.operators[0] in ("=", "in")]
    names = [spelled(item.sides[0]) for item in named]
    return {name.partition("_")[0] for name in names if name is not None}


def are_of_many(items: tuple[Node, ...]) -> bool:
    """Whether x = 1, y = 2 tells of different unknowns; x_1 = 1, x_2 = 2 are solutions of one."""
    return len({name.partition("_")[0] for name in distinct_labels(items)}) > 1


# "red, blue and green" in any order and with any joiner but "or"

_MAX_WORDS = 3
_AND = re.compile(r"\s*(?:[,;&]|\band\b)\s*")


def list_of_words(node: Node) -> list[str] | None:
    """The items, sorted; None when the node is no list of short texts, or offers them as candidates."""
    match node:
        case Text(words):
            items = [item for item in _AND.split(words) if item]
        case Listing(texts, joined_by) if joined_by != "or":
            items = [item.words for item in texts if isinstance(item, Text)]
            if len(items) < len(texts):
                return None
        case _:
            return None
    short = all(len(item.split()) <= _MAX_WORDS and "or" not in item.split() for item in items)
    return sorted(items) if len(items) > 1 and short else None


Values = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Solutions:
    names: tuple[str, ...]
    """In the order of the values; empty for plain tuples."""
    values: tuple[Values, ...]
    is_assigned: bool = False
    """Written as p=5, q=2, so that the order of the names is only the writer's."""


def same_solutions(gold: Node, response: Node, same: Callable[[Node, Node], bool]) -> bool | None:
    """Whether both are the same solutions in any order; None unless one lists assignments of two or more.

    Assignments stand for plain tuples in the order of the alphabet, in which such tuples are asked for."""
    assigned = _assignments(gold), _assignments(response)
    if assigned == (None, None):
        return None
    one, other = assigned[0] or _tuples(gold), assigned[1] or _tuples(response)
    if one is None or other is None:
        return False
    ordered = _in_order_of(other, one)
    if ordered is None or len(ordered) != len(one.values):
        return False
    return pair_off(
        one.values, ordered, lambda left, right: len(left) == len(right) and all(map(same, left, right))
    )


def _in_order_of(response: Solutions, gold: Solutions) -> tuple[Values, ...] | None:
    """The values of the response in the order of the gold's names; None when the names do not fit."""
    if gold.names and response.names:
        if set(gold.names) != set(response.names):
            return None
        places = [response.names.index(name) for name in gold.names]
        return tuple(tuple(values[place] for place in places) for values in response.values)
    named = gold if gold.names else response
    is_in_order = not named.is_assigned or list(named.names) == sorted(named.names)
    return response.values if is_in_order else None


def _assignments(node: Node) -> Solutions | None:
    """p=5, q=2; p=7, q=2: two or more blocks, each of which names every unknown once."""
    if not isinstance(node, Listing):
        return None
    pairs = [
        (item.sides[0].name, item.sides[1])
        for item in node.items
        if isinstance(item, Relation) and item.operators == ("=",) and isinstance(item.sides[0], Symbol)
    ]
    if len(pairs) != len(node.items):
        return None
    names = tuple(dict.fromkeys(name for name, _ in pairs))
    size = len(names)
    if size < 2 or len(pairs) < 2 * size or len(pairs) % size:
        return None
    blocks = [dict(pairs[start : start + size]) for start in range(0, len(pairs), size)]
    if any(len(block) < size for block in blocks):
        return None
    return Solutions(names, tuple(tuple(block[name] for name in names) for block in blocks), is_assigned=True)


def _tuples(node: Node) -> Solutions | None:
    match node:
        case SetOf(items):
            return _plain(tuple(dict.fromkeys(items)))
        case Relation(("in",), (Bracket() as names, SetOf(items))):
            return _named(names, items)
        case Listing((Relation(("=",), (Bracket() as names, first)), *rest)):
            told = [
                item.sides[1]
                for item in rest
                if isinstance(item, Relation) and (item.operators, item.sides[0]) == (("=",), names)
            ]
            plain = [item for item in rest if not isinstance(item, Relation)]
            together = len(told) in (0, len(rest)) and len(told) + len(plain) == len(rest)
            return _named(names, (first, *told, *plain)) if together else None
        case Listing(items):
            return _plain(items)
    return None


def _named(names: Bracket, items: tuple[Node, ...]) -> Solutions | None:
    letters = tuple(item.name for item in names.items if isinstance(item, Symbol))
    plain = _plain(items)
    if plain is None or len(letters) != len(names.items) or len(set(letters)) != len(letters):
        return None
    return Solutions(letters, plain.values)


def _plain(items: tuple[Node, ...]) -> Solutions | None:
    tuples = [
        item.items for item in items if isinstance(item, Bracket) and item.opening + item.closing == "()"
    ]
    return Solutions((), tuple(tuples)) if tuples and len(tuples) == len(items) else None


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
    if (is_same := _same_renamed(one, other)) or one.numbers != NamedSet("Z"):
        return is_same
    lines = [_line(node, one.letter) for node in one.expressions]
    others = [_line(node, other.letter) for node in other.expressions]
    return None not in lines and None not in others and pair_off(lines, others, _same_lattice)


def without_qualifier(gold: Node, response: Node) -> Node:
    r"""The k\pi of "k\pi, k is an integer" for a gold k\pi, which has the letter and does not say where it
    lives; else the whole response."""
    match response:
        case Listing((*items, Relation(("in",), (Symbol(letter), NamedSet(numbers))))) if items:
            # The gold itself may be about where the letter lives, or bound it.
            parts = gold.items if isinstance(gold, Listing) else (gold,)
            is_told = any(isinstance(part, Relation) and part.operators != ("=",) for part in parts)
            is_usual = numbers == "R" or (numbers == "Z" and letter not in _REAL_LETTERS)
            if is_usual and letter in free_symbols(gold) and not is_told:
                return items[0] if len(items) == 1 else Listing(tuple(items), response.joined_by)
    return response


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
