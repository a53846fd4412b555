r"""The constant that an antiderivative or a solution of a differential equation ends with, + C, by any name.

Renamed only where it can be nothing else: it is a term of its own, occurs once, and no other capital or c is
there, with which it would be a quantity (A + C). + c next to a, b or d is a coefficient."""

import re
from collections.abc import Iterator
from itertools import permutations, product
from typing import TypeAlias

from verifiers.math.nodes import Constant as Number
from verifiers.math.nodes import FunctionCall, Node, Power, Product, Relation, Sum, Symbol, Text
from verifiers.math.trees import contains, free_symbols, negative, replaced, walk

Constant: TypeAlias = Symbol | Text

_OF_GOLD = re.compile(r"[cCK](?:_\w{1,3})?")
_OF_RESPONSE = re.compile(r"[cCkK](?:_\w{1,3})?")
_WORDS = re.compile(
    r"(?:(?:an?|any|some) )?(?:(?:arbitrary|real|integration) )?const(?:ant)?(?: of integration)?"
)
_COEFFICIENTS = frozenset("abd")
_OF_SOLUTION = re.compile(r"[A-DKck](?:_\w{1,3})?")
_MAX_CONSTANTS = 3


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


def respelled(gold: Node, response: Node) -> Iterator[Node]:
    r"""The response with its arbitrary constants under the names of the gold, in each order, with each sign:
    C_1 e^x - C_2 e^{-x}, A e^x + B e^{-x}; x^2 - C; \ln|Cx| for \ln|x| + C. Each constant stands for any
    number, so these are one set of solutions."""
    if (
        _added_constant(gold, _OF_GOLD) == Symbol("C")
        and _is_alone(gold, Symbol("C"))
        and free_symbols(gold) != {"C"}
    ):
        for name in free_symbols(response):
            if _OF_SOLUTION.fullmatch(name) and contains(response, negative(Symbol(name))):
                yield with_constant_of(gold, replaced(response, negative(Symbol(name)), Symbol(name)))
        if any(isinstance(item, FunctionCall) and item.name == "ln" for item in walk(response)):
            yield replaced(response, Symbol("C"), Power(Number("e"), Symbol("C")))
        return
    wanted = _multiplying(gold)
    others = free_symbols(gold) - {constant.name for constant in wanted}
    given = [Symbol(name) for name in sorted(free_symbols(response) - others)]
    if not wanted or len(given) != len(wanted) or not all(_OF_SOLUTION.fullmatch(one.name) for one in given):
        return
    if any(_occurrences(response, one) != 1 for one in given):
        return
    for order in permutations(wanted):
        for signs in product((1, -1), repeat=len(order)):
            changed = response
            # By names that nothing has, so that C_1 and C_2 can change places.
            for at, one in enumerate(given):
                changed = replaced(changed, one, Symbol(f"constant {at}"))
            for at, (constant, sign) in enumerate(zip(order, signs, strict=True)):
                new = constant if sign > 0 else negative(constant)
                changed = replaced(changed, Symbol(f"constant {at}"), new)
            yield changed


def _multiplying(gold: Node) -> list[Symbol]:
    """The constants of a solution in other letters, each a factor of one term: C_1 and C_2, or C of C e^x."""
    last = gold.sides[-1] if isinstance(gold, Relation) else gold
    constants = [Symbol(name) for name in sorted(free_symbols(last)) if _OF_GOLD.fullmatch(name)]
    terms = last.terms if isinstance(last, Sum) else (last,)
    numbered = len(constants) > 1 and all("_" in constant.name for constant in constants)
    grows = constants == [Symbol("C")] and any(
        isinstance(item, Power) and item.base == Number("e") and free_symbols(item.exponent)
        for item in walk(last)
    )
    are_factors = all(
        _occurrences(last, constant) == 1
        and any(
            term == constant or (isinstance(term, Product) and constant in term.factors) for term in terms
        )
        for constant in constants
    )
    has_others = len(constants) < len(free_symbols(last))
    is_solution = (numbered or grows) and are_factors and has_others and len(constants) <= _MAX_CONSTANTS
    return constants if is_solution else []


def _occurrences(node: Node, constant: Constant) -> int:
    return sum(item == constant for item in walk(node))


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
    return _occurrences(node, constant) == 1 and not any(name.isupper() or name == "c" for name in names)


def _may_be_renamed(gold: Node, constant: Constant, other: Constant) -> bool:
    """Whether more than the case of a letter may differ."""
    rest = free_symbols(gold) - ({constant.name} if isinstance(constant, Symbol) else set())
    if not rest or (isinstance(other, Symbol) and other.name in rest):
        return False
    return constant != Symbol("c") or (other != Symbol("k") and rest.isdisjoint(_COEFFICIENTS))
