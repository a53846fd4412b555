r"""The constant that an antiderivative or a solution of a differential equation ends with, + C, by any name.

Renamed only where it can be nothing else: it is a term of its own, occurs once, and no other capital or c is
there, with which it would be a quantity (A + C). + c next to a, b or d is a coefficient."""

import re
from typing import TypeAlias

from verifiers.math.nodes import Node, Relation, Sum, Symbol, Text
from verifiers.math.trees import free_symbols, replaced, walk

Constant: TypeAlias = Symbol | Text

_OF_GOLD = re.compile(r"[cCK](?:_\w{1,3})?")
_OF_RESPONSE = re.compile(r"[cCkK](?:_\w{1,3})?")
_WORDS = re.compile(
    r"(?:(?:an?|any|some) )?(?:(?:arbitrary|real|integration) )?const(?:ant)?(?: of integration)?"
)
_COEFFICIENTS = frozenset("abd")


def with_constant_of(gold: Node, response: Node) -> Node:
    """The response with its constant of integration spelled as in the gold: + K for + C."""
    constant = _added_constant(gold, _OF_GOLD)
    other = _added_constant(response, _OF_RESPONSE) if constant is not None else None
    if constant is None or other is None or constant == other:
        return response
    if not (_is_alone(gold, constant) and _is_alone(response, other)):
        return response
    cases = {constant, other} == {Symbol("c"), Symbol("C")}
    return (
        replaced(response, other, constant) if cases or _may_be_renamed(gold, constant, other) else response
    )


def _added_constant(node: Node, names: re.Pattern[str]) -> Constant | None:
    """The + C at the end of an expression, or of what stands after the equals sign."""
    last = node.sides[-1] if isinstance(node, Relation) else node
    if not isinstance(last, Sum):
        return None
    for term in last.terms:
        match term:
            case Symbol(name) if names.fullmatch(name):
                return term
            case Text(words) if _WORDS.fullmatch(words):
                return term
    return None


def _is_alone(node: Node, constant: Constant) -> bool:
    names = [item.name if isinstance(item, Symbol) else "" for item in walk(node) if item != constant]
    occurrences = sum(item == constant for item in walk(node))
    return occurrences == 1 and not any(name.isupper() or name == "c" for name in names)


def _may_be_renamed(gold: Node, constant: Constant, other: Constant) -> bool:
    """Whether more than the case of a letter may differ."""
    rest = free_symbols(gold) - ({constant.name} if isinstance(constant, Symbol) else set())
    if not rest or (isinstance(other, Symbol) and other.name in rest):
        return False
    return constant != Symbol("c") or (other != Symbol("k") and rest.isdisjoint(_COEFFICIENTS))
