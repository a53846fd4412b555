"""What there is to ask of any tree, and the few changes that any tree may get. Knows no arithmetic."""

from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from verifiers.math.nodes import Bound, Call, Constant, Node, Number, Operation, Product, Symbol

INFINITY = Constant("infinity")
MINUS_ONE = Number(Fraction(-1))


def walk(node: Any) -> Iterator[Any]:
    """The node and all below it, parents first."""
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack.extend(reversed(item))
        elif hasattr(item, "__dataclass_fields__"):
            yield item
            # Not dataclasses.fields(), which takes longer than all the rest here.
            stack.extend([getattr(item, name) for name in reversed(item.__dataclass_fields__)])


def size(node: Node) -> int:
    """How many nodes the tree has."""
    return sum(1 for _ in walk(node))


def free_symbols(node: Node) -> frozenset[str]:
    return frozenset(item.name for item in walk(node) if isinstance(item, Symbol))


def constants(node: Node) -> frozenset[str]:
    return frozenset(item.name for item in walk(node) if isinstance(item, Constant))


def has_call(node: Node, *, known: bool) -> bool:
    return any(isinstance(item, Call) and item.known is known for item in walk(node))


def infinity_sign(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    match node:
        case Constant("infinity"):
            return 1
        case Product((Number(value=factor), Constant("infinity"))) if factor == -1:
            return -1
    return 0


def contains(node: Any, wanted: Node) -> bool:
    if node == wanted:
        return True
    if isinstance(node, tuple):
        return any(contains(item, wanted) for item in node)
    return hasattr(node, "__dataclass_fields__") and any(
        contains(getattr(node, field.name), wanted) for field in fields(node)
    )


def replaced(node: Any, old: Node, new: Node) -> Any:
    """The tree with every `old` in it changed to `new`."""
    if node == old:
        return new
    if isinstance(node, tuple):
        return tuple(replaced(item, old, new) for item in node)
    if hasattr(node, "__dataclass_fields__"):
        return replace(
            node, **{field.name: replaced(getattr(node, field.name), old, new) for field in fields(node)}
        )
    return node


def negative(node: Node) -> Node:
    """Minus the node; of a number as it was written, with its digits."""
    if isinstance(node, Number):
        return Number(-node.value, node.places, node.significant, node.open_ended)
    return Product((MINUS_ONE, node))


def bind(name: str, body: Node, letter: str, parts: tuple[Node, ...]) -> Operation:
    """The operation with its letter bound, one level above the operations inside it."""
    bound = Bound(_height(body) + 1)
    return Operation(name, replaced(body, Symbol(letter), bound), parts, bound, letter)


def _height(node: Any) -> int:
    """The height of the highest operation in the tree that binds a letter; 0 without one."""
    if isinstance(node, tuple):
        return max(map(_height, node), default=0)
    if isinstance(node, Bound):
        return node.height
    if hasattr(node, "__dataclass_fields__"):
        return max((_height(getattr(node, field.name)) for field in fields(node)), default=0)
    return 0
