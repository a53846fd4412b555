"""Several solutions in several unknowns: p=5, q=2; p=7, q=2 or (5, 2), (7, 2) or (p, q) = (5, 2), (7, 2)."""

from collections.abc import Callable
from dataclasses import dataclass

from verifiers.math.lists import pair_off
from verifiers.math.nodes import Bracket, Listing, Node, Relation, SetOf, Symbol

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
    return pair_off(one.values, ordered, lambda left, right: _same_values(left, right, same))


def _same_values(one: Values, other: Values, same: Callable[[Node, Node], bool]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


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
            told = [item.sides[1] for item in rest if isinstance(item, Relation) and _tells(item, names)]
            plain = [item for item in rest if not isinstance(item, Relation)]
            together = len(told) in (0, len(rest)) and len(told) + len(plain) == len(rest)
            return _named(names, (first, *told, *plain)) if together else None
        case Listing(items):
            return _plain(items)
    return None


def _tells(item: Relation, names: Bracket) -> bool:
    return item.operators == ("=",) and item.sides[0] == names


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
