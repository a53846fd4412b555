r"""Shorthands written out before two trees are compared: a \pm b becomes two items, "no solution" and "all
real numbers" become sets; and the constant that an antiderivative or a solution ends with, + C, by any name.

A constant is renamed only where it can be nothing else: it is a term of its own, occurs once, and no other
capital or c is there, with which it would be a quantity (A + C). + c next to a, b or d is a coefficient."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from typing import TypeAlias

from verifiers.math.nodes import (
    SETS,
    Constant,
    FunctionCall,
    Listing,
    Matrix,
    NamedSet,
    Node,
    Number,
    PlusMinus,
    Power,
    Product,
    Quotient,
    Relation,
    SetBuilder,
    SetOf,
    SetOperation,
    Sum,
    Symbol,
    Text,
)  # fmt: skip
from verifiers.math.trees import (
    INFINITY,
    contains,
    free_symbols,
    has_plus_minus,
    negative,
    rebuilt,
    replaced,
    walk,
)
from verifiers.math.words import ALL_REALS, NO_SOLUTION, number_in_words


def expand(node: Node) -> Node:
    match node:
        case Text(words):
            return _named_by_words(words) or node
        case Listing(items, joined_by):
            return Listing(_expanded(items), joined_by)
        case SetOf(items):
            return SetOf(_expanded(items))
        case SetBuilder():
            return replace(node, condition=expand(node.condition))
        case Sum((NamedSet() | SetOf() | SetOperation() | SetBuilder() as left, Product((_, right)))) if (
            isinstance(right, SETS)
        ):
            # \mathbb{R} - \{0\}
            return SetOperation("difference", left, right)
    if not has_plus_minus(node):
        return _scaled_matrix(node)
    # x = \pm 2 is one or the other; x \ne \pm 2 is neither.
    excludes = isinstance(node, Relation) and node.operators == ("!=",)
    return Listing((_with_sign(node, 1), _with_sign(node, -1)), "and" if excludes else "or")


def _expanded(items: tuple[Node, ...]) -> tuple[Node, ...]:
    found: list[Node] = []
    for item in map(expand, items):
        found.extend(item.items if isinstance(item, Listing) else (item,))
    return tuple(found)


def _scaled_matrix(node: Node) -> Node:
    """A number times a matrix, or a matrix over a number, entry by entry."""
    match node:
        case Quotient(Matrix() as matrix, bottom):
            return _each_entry(matrix, lambda entry: Quotient(entry, bottom))
        case Product(factors):
            matrices = [factor for factor in factors if isinstance(factor, Matrix)]
            if len(matrices) == 1:
                scalars = tuple(factor for factor in factors if factor is not matrices[0])
                return _each_entry(matrices[0], lambda entry: Product((*scalars, entry)))
    return node


def _each_entry(matrix: Matrix, change: Callable[[Node], Node]) -> Matrix:
    return Matrix(tuple(tuple(change(entry) for entry in row) for row in matrix.rows))


def _named_by_words(words: str) -> Node | None:
    if words in NO_SOLUTION:
        return NamedSet("empty")
    if words in ("infinity", "positive infinity"):
        return INFINITY
    if words in ("negative infinity", "minus infinity"):
        return negative(INFINITY)
    if words in ALL_REALS:
        return NamedSet("R")
    number = number_in_words(words)
    return None if number is None else Number(Fraction(number))


def _with_sign(node: Node, sign: int) -> Node:
    """The tree with each \\pm read as `sign` and each \\mp as its opposite."""
    if not isinstance(node, PlusMinus):
        return rebuilt(node, lambda part: _with_sign(part, sign))
    inner = _with_sign(node.value, sign)
    return inner if (sign > 0) is not node.flipped else negative(inner)


Arbitrary: TypeAlias = Symbol | Text
"""A constant that stands for any number."""

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
            yield replaced(response, Symbol("C"), Power(Constant("e"), Symbol("C")))
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
        isinstance(item, Power) and item.base == Constant("e") and free_symbols(item.exponent)
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


def _occurrences(node: Node, constant: Arbitrary) -> int:
    return sum(item == constant for item in walk(node))


def _added_constant(node: Node, names: re.Pattern[str]) -> Arbitrary | None:
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


def _is_alone(node: Node, constant: Arbitrary) -> bool:
    names = [item.name if isinstance(item, Symbol) else "" for item in walk(node) if item != constant]
    return _occurrences(node, constant) == 1 and not any(name.isupper() or name == "c" for name in names)


def _may_be_renamed(gold: Node, constant: Arbitrary, other: Arbitrary) -> bool:
    """Whether more than the case of a letter may differ."""
    rest = free_symbols(gold) - ({constant.name} if isinstance(constant, Symbol) else set())
    if not rest or (isinstance(other, Symbol) and other.name in rest):
        return False
    return constant != Symbol("c") or (other != Symbol("k") and rest.isdisjoint(_COEFFICIENTS))
