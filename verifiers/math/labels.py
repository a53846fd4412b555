"""The names before the items of a list: x = 1, x = 2 are values of one unknown, x = 1, y = 2 of two."""

from verifiers.math.names import is_name, spelled
from verifiers.math.nodes import Listing, Node, Relation, Symbol, Text


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
