"""Equations and inequalities: what a chain of signs asserts, and when two of them assert the same."""

from fractions import Fraction

from verifiers.math.arithmetic import exact_or_none, real_fraction
from verifiers.math.nodes import (
    FunctionCall,
    Node,
    Number,
    Product,
    Quotient,
    Ratio,
    Relation,
    Sum,
    Symbol,
    Text,
)
from verifiers.math.numbers import NotNumber
from verifiers.math.points import random_prime
from verifiers.math.scalars import random_source, rounds_to, same_scalar
from verifiers.math.trees import (
    difference,
    free_symbols,
    is_name,
    named_terms,
    names_ratio,
    replaced,
    same_name,
)

_ATTEMPTS = 12
# Calls that solving an equation in one letter undoes: \sqrt{x} = 10, \ln x = 10.
_ALGEBRA = {"sqrt", "cbrt", "root", "ln", "log", "exp", "factorial", "double_factorial", "binomial"}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}


def value_of_chain(gold: Node, response: Relation) -> Node | None:
    """Value that a response such as S = 2 + 3 = 5 gives for a gold that is no relation; None when it asserts
    something else.

    Every side that could be the answer must agree with the last one; only the first may be a name for it."""
    if not set(response.operators) <= {"=", "~"}:
        return None
    *others, last = response.sides
    if is_name(last) and len(others) == 1 and not is_name(others[0]):
        # 5 = x
        return others[0]
    for position, side in enumerate(others):
        if _names_a_value(side, last) if position == 0 else is_name(side):
            continue
        approximate = "~" in response.operators[position:]
        if not (same_scalar(side, last) or (approximate and _is_approximation(side, last))):
            return None
    if "~" in response.operators:
        # \sqrt{2} \approx 1.41 offers both; the exact one counts, unless the gold is itself the decimal.
        exact = others[-1] if not _names_a_value(others[-1], last) else last
        return last if same_scalar(gold, last) else exact
    return last


def _names_a_value(side: Node, value: Node) -> bool:
    """Whether `side` names the value: a name, a tuple of names, or a quantity with letters for a number."""
    if is_name(side):
        # x = x^2 is an equation, no name for its right side.
        return not (isinstance(side, Symbol) and side.name in free_symbols(value))
    if names_ratio(side, value):
        return True
    if isinstance(side, Sum) and exact_or_none(value) == 0:
        # x + 2y - 5 = 0 is an equation in its usual form, not the value of its left side.
        return False
    letters = free_symbols(side)
    if not letters or free_symbols(value) or isinstance(value, Text):
        return False
    # x + y = 5 and \sin A = 5 say what the quantity is. With one letter in algebra, 2x = 10 says what x is.
    return len(letters) > 1 or (isinstance(side, FunctionCall) and side.name not in _ALGEBRA)


def _is_approximation(exact: Node, decimal: Node) -> bool:
    match decimal:
        case Number(places=None):
            return same_scalar(exact, decimal)
        case Number():
            return rounds_to(exact, decimal, least=1)
    return False


def solved_for(equation: Relation) -> tuple[Node, Node] | None:
    """(name, value) of x = 5, 5 = x or S = 2 + 3 = 5; None when no side alone is a name."""
    first, last = equation.sides[0], equation.sides[-1]
    if is_name(first) or names_ratio(first, last):
        middle = equation.sides[1:-1]
        return (first, last) if all(same_scalar(side, last) for side in middle) else None
    if is_name(last) and len(equation.sides) == 2:
        return last, first
    return None


def value_for_name(wanted: Node, solved: tuple[Node, Node]) -> Node | None:
    """The value that `solved` gives the name `wanted`, or its inverse for a ratio of two names that is
    turned around (b:a = 4:3 for a:b); None when it tells of another name."""
    name, value = solved
    if same_name(wanted, name):
        return value
    terms, others = named_terms(wanted), named_terms(name)
    if not terms or len(terms) != len(others):
        return None
    if all(map(same_name, terms, others)):
        return value
    if len(terms) > 2 or not all(map(same_name, terms, others[::-1])):
        return None
    match value:
        case Ratio((first, second)):
            return Ratio((second, first))
    return Quotient(Number(Fraction(1)), value)


def same_equation(gold: Relation, response: Relation) -> bool:
    """Whether both have the same graph because one is a multiple of the other.

    Not for one unknown: there 2x = 10 is the task, not its solution x = 5."""
    if len(gold.sides) != 2 or len(response.sides) != 2 or response.operators != ("=",):
        return False
    letters = free_symbols(gold)
    if letters != free_symbols(response):
        return False
    if len(letters) < 2 and solved_for(gold) is not None:
        return False
    return _constant_ratio(gold, response) is not None


def same_inequality(gold: Relation, response: Relation) -> bool:
    """Inequalities in several letters: a multiple by a positive constant, or turned around by a negative
    one; a chain a < b < c side by side, or read from its other end."""
    if len(gold.sides) != len(response.sides) or free_symbols(gold) != free_symbols(response):
        return False
    if len(gold.sides) > 2:
        return _same_chain(gold, response) or _same_chain(gold, _reversed(response))
    operator, other = gold.operators[0], response.operators[0]
    if operator not in _FLIPPED or other not in _FLIPPED:
        return False
    ratio = _constant_ratio(gold, response)
    if ratio is None:
        return False
    return operator == (other if ratio > 0 else _FLIPPED[other])


def _same_chain(gold: Relation, response: Relation) -> bool:
    return gold.operators == response.operators and all(map(same_scalar, gold.sides, response.sides))


def _reversed(chain: Relation) -> Relation:
    """c > b > a for a < b < c."""
    operators = tuple(_FLIPPED.get(operator, operator) for operator in reversed(chain.operators))
    return Relation(operators, chain.sides[::-1])


def _constant_ratio(gold: Relation, response: Relation) -> Fraction | None:
    """gold's difference / response's difference if that is one number wherever both are defined, or None."""
    first, second = difference(*gold.sides), difference(*response.sides)
    letters = sorted(free_symbols(gold) | free_symbols(response))
    source = random_source(gold, response)
    prime = random_prime(source, 31)
    for attempt in range(_ATTEMPTS):
        signs = (-1, 1) if attempt % 2 else (1,)
        origin = {
            name: Fraction(source.randint(prime // 5, 3 * prime) * source.choice(signs), prime)
            for name in letters
        }
        try:
            sizes = real_fraction(first, origin), real_fraction(second, origin)
        except NotNumber:
            continue
        if all(sizes):
            # With the ratio at one place as it is, and not as a decimal: the same everywhere.
            crossed = [
                Product((_at(other, origin), side)) for side, other in ((first, second), (second, first))
            ]
            return sizes[0] / sizes[1] if same_scalar(*crossed) else None
    return None


def _at(node: Node, values: dict[str, Fraction]) -> Node:
    for name, value in values.items():
        node = replaced(node, Symbol(name), Number(value))
    return node
