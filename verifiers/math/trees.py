"""Queries on any tree, and the few changes that any tree may get. Knows no arithmetic."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, get_args

from verifiers.math.nodes import (
    Bound,
    Constant,
    FunctionCall,
    Node,
    Number,
    Operation,
    PlusMinus,
    Product,
    Sum,
    Symbol,
)

INFINITY = Constant("infinity")
MINUS_ONE = Number(Fraction(-1))

# The fields of each class that hold nodes, alone or in tuples. The last comes first, for a stack.
_NODE_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(
        field.name for field in reversed(fields(kind)) if "Node" in str(field.type) or field.name == "bound"
    )
    for kind in get_args(Node)
}


def walk(node: Node) -> list[Any]:
    """The node and all below it, parents first."""
    found: list[Any] = []
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        names = _NODE_FIELDS.get(type(item))
        if names is None:
            stack.extend(reversed(item or ()))
            continue
        found.append(item)
        for name in names:
            stack.append(getattr(item, name))
    return found


def children(node: Node) -> Iterator[Node]:
    """The nodes right below this one, in order."""
    stack = [getattr(node, name) for name in _NODE_FIELDS[type(node)]]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack.extend(reversed(item))
        elif item is not None:
            yield item


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
