r"""Queries on any tree, and the few changes that any tree may get; which trees are names of quantities (x,
f(x), \angle ABC, a segment AB or \overline{AB}, \text{area}) and ratios of them. Knows no arithmetic."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any, get_args

from verifiers.math.nodes import (
    Bound,
    Bracket,
    Constant,
    FunctionCall,
    Node,
    Number,
    Operation,
    PlusMinus,
    Product,
    Quotient,
    Ratio,
    Sum,
    Symbol,
    Text,
)

INFINITY = Constant("infinity")
MINUS_ONE = Number(Fraction(-1))

_NODE_FIELDS: dict[type, dict[str, str]] = {
    kind: {
        field.name: str(field.type)
        for field in fields(kind)
        if "Node" in str(field.type) or field.name == "bound"
    }
    for kind in get_args(Node)
}
"""The fields of each class that hold nodes, alone or in tuples, with their types."""


def _below(names: dict[str, str]) -> Callable[[Any], tuple[Any, ...]]:
    """Gives the nodes right below a node with these fields: by one look for the usual classes."""
    types = list(names.values())
    if types == ["tuple[Node, ...]"] or types == ["Node", "Node"]:
        return attrgetter(*names)
    return lambda node: tuple(_flat([getattr(node, name) for name in names]))


def _flat(parts: Iterable[Any]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, tuple):
            yield from _flat(part)
        elif part is not None:
            yield part


_BELOW = {kind: _below(names) for kind, names in _NODE_FIELDS.items() if names}


def walk(node: Node) -> list[Any]:
    """The node and all below it, parents first, level by level."""
    found: list[Any] = [node]
    for item in found:
        below = _BELOW.get(type(item))
        if below is not None:
            found += below(item)
    return found


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below this one, in order."""
    below = _BELOW.get(type(node))
    return () if below is None else below(node)


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` applied to each node right below it."""

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return None if value is None else change(value)

    names = _NODE_FIELDS[type(node)]
    return replace(node, **{name: changed(getattr(node, name)) for name in names}) if names else node


def replaced(node: Node, old: Node, new: Node) -> Node:
    """The tree with every `old` in it changed to `new`."""
    return new if node == old else rebuilt(node, lambda part: replaced(part, old, new))


def contains(node: Node, wanted: Node) -> bool:
    return any(item == wanted for item in walk(node))


def size(node: Node) -> int:
    """How many nodes the tree has."""
    return len(walk(node))


def nesting(node: Node) -> int:
    r"""How many functions stand inside each other, as in \ln\ln\ln x."""
    return max(map(nesting, children(node)), default=0) + isinstance(node, FunctionCall)


def free_symbols(node: Node) -> frozenset[str]:
    return frozenset([item.name for item in walk(node) if type(item) is Symbol])


def constants(node: Node) -> frozenset[str]:
    return frozenset([item.name for item in walk(node) if type(item) is Constant])


def has_call(node: Node, *, known: bool) -> bool:
    return any([item.known is known for item in walk(node) if type(item) is FunctionCall])


def has_plus_minus(node: Node) -> bool:
    return any([type(item) is PlusMinus for item in walk(node)])


def infinity_sign(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    match node:
        case Constant("infinity"):
            return 1
        case Product((Number(value=factor), Constant("infinity"))) if factor == -1:
            return -1
    return 0


def flat_factors(node: Node) -> list[Node]:
    """The factors of a product and of the products in it; the node alone when it is none."""
    if not isinstance(node, Product):
        return [node]
    return [factor for part in node.factors for factor in flat_factors(part)]


def negative(node: Node) -> Node:
    """Minus the node; of a number as it was written, with its digits."""
    if isinstance(node, Number):
        return replace(node, value=-node.value)
    return Product((MINUS_ONE, node))


def difference(left: Node, right: Node) -> Sum:
    return Sum((left, Product((MINUS_ONE, right))))


def bind(name: str, body: Node, letter: str, parts: tuple[Node, ...]) -> Operation:
    """The operation with its letter bound, one level above the operations inside it."""
    inside = max((item.height for item in walk(body) if isinstance(item, Bound)), default=0)
    bound = Bound(inside + 1)
    return Operation(name, replaced(body, Symbol(letter), bound), parts, bound, letter)


_GRAPH = {Symbol("y"), FunctionCall("f", (Symbol("x"),), known=False)}
"""Two names of one curve: y = 2x + 1 and f(x) = 2x + 1."""


def is_name(node: Node) -> bool:
    """Whether a side only names the thing: x, f(x), \\angle ABC, |AB| is not one (it is a quantity)."""
    match node:
        case Symbol() | Text() | FunctionCall(known=False):
            return True
        case Bracket(_, _, items):
            return all(map(is_name, items))
    return bool(_points(node))


def same_name(one: Node, other: Node) -> bool:
    if one == other or {one, other} == _GRAPH:
        return True
    return bool(_points(one)) and _points(one) == _points(other)


def named_terms(node: Node) -> tuple[Node, ...]:
    r"""The names of a ratio of names, S_1 and S_2 of S_1:S_2 or \frac{S_1}{S_2}; empty for anything else."""
    match node:
        case Quotient(top, bottom):
            items: tuple[Node, ...] = (top, bottom)
        case Ratio(items):
            pass
        case _:
            return ()
    terms = tuple(map(_length, items))
    distinct = len(set(terms)) == len(terms)
    are_quantities = all(is_name(term) and not isinstance(term, Bracket) for term in terms)
    return terms if distinct and are_quantities else ()


def names_ratio(node: Node, value: Node) -> bool:
    """Whether `node` is a ratio of names that `value` tells: no letter of the names is part of the value."""
    return bool(named_terms(node)) and free_symbols(node).isdisjoint(free_symbols(value))


def with_marks_of(gold: Node, response: Node) -> Node:
    r"""The response with the marks of the gold on its letters: \vec a for a, which may be bold, and the other
    way round for one letter."""
    wanted = free_symbols(gold)
    for name in free_symbols(response) - wanted:
        mark, _, letter = name.rpartition(" ")
        if mark in ("vector", "hat") and letter in wanted:
            response = replaced(response, Symbol(name), Symbol(letter))
        elif not mark and f"vector {name}" in wanted:
            response = replaced(response, Symbol(name), Symbol(f"vector {name}"))
    return response


def spelled(name: Node) -> str | None:
    """A text that only this name has, however it is written; None of what is no name of one quantity."""
    match name:
        case FunctionCall(known=False):
            return repr(name)
        case Text(words):
            return f"text {words}"
        case Symbol(letter):
            return _points(name) or letter
    return _points(name) or None


def _length(node: Node) -> Node:
    """The segment of its length |AB|."""
    match node:
        case FunctionCall("abs", (inner,)) if _points(inner):
            return inner
    return node


def _points(node: Node) -> str:
    r"""The points of a segment, AB or \overline{AB}; empty for anything else."""
    match node:
        case Product(factors):
            names = [factor.name for factor in factors if isinstance(factor, Symbol)]
            return "".join(names) if len(names) == len(factors) and all(map(str.isupper, names)) else ""
        case Symbol(name) if name.startswith("overline ") and len(name) > len("overline x"):
            return name.removeprefix("overline ")
    return ""
