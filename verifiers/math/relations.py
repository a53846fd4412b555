"""Equations and inequalities: what a chain of signs asserts, and when two of them assert the same."""

from fractions import Fraction

from verifiers.math.arithmetic import NotNumber, real_fraction
from verifiers.math.nodes import (
    Bracket,
    FunctionCall,
    Node,
    Number,
    Product,
    Quotient,
    Relation,
    Sum,
    Symbol,
    Text,
)
from verifiers.math.scalars import exact_or_none, random_source, rounds_to, same_scalar
from verifiers.math.trees import difference, free_symbols

_POINTS = 4
# Calls that solving an equation in one letter undoes: \sqrt{x} = 10, \ln x = 10.
_ALGEBRA = {"sqrt", "cbrt", "root", "ln", "log", "exp", "factorial", "double_factorial", "binomial"}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}


def is_name(node: Node) -> bool:
    """Whether a side only names the thing: x, f(x), \\angle ABC, |AB| is not one (it is a quantity)."""
    match node:
        case Symbol() | Text() | FunctionCall(known=False):
            return True
        case Quotient(Product((Symbol("d"), _)), Product((Symbol("d"), _))):
            # dy/dx
            return True
        case Bracket(_, _, items):
            return all(map(is_name, items))
    return bool(_points(node))


def same_name(one: Node, other: Node) -> bool:
    return one == other or (bool(_points(one)) and _points(one) == _points(other))


def _points(node: Node) -> str:
    r"""The points of a segment, AB or \overline{AB}; empty for anything else."""
    match node:
        case Product(factors):
            names = [factor.name for factor in factors if isinstance(factor, Symbol)]
            return "".join(names) if len(names) == len(factors) and all(map(str.isupper, names)) else ""
        case Symbol(name) if name.startswith("overline ") and len(name) > len("overline x"):
            return name.removeprefix("overline ")
    return ""


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
        if is_name(side) or (position == 0 and _names_a_value(side, last)):
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
    if is_name(first):
        middle = equation.sides[1:-1]
        return (first, last) if all(same_scalar(side, last) for side in middle) else None
    if is_name(last) and len(equation.sides) == 2:
        return last, first
    return None


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
    ratios: list[Fraction] = []
    for attempt in range(3 * _POINTS):
        signs = (-1, 1) if attempt % 2 else (1,)
        values = {name: Fraction(source.randint(20, 300) * source.choice(signs), 97) for name in letters}
        try:
            bottom = real_fraction(second, values)
            if bottom:
                ratios.append(real_fraction(first, values) / bottom)
        except NotNumber:
            continue
        if len(ratios) == _POINTS:
            break
    if len(ratios) < 2 or not ratios[0]:
        return None
    allowed = abs(ratios[0]) * Fraction(1, 10**25)
    return ratios[0] if all(abs(ratio - ratios[0]) <= allowed for ratio in ratios) else None
