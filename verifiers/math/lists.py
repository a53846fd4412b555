"""Lists of answers: in any order, under their labels, as words."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from verifiers.math.names import is_name, spelled
from verifiers.math.nodes import Listing, Node, Relation, Symbol, Text

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
