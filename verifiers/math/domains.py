r"""Domains of letters: a real number, an integer, a complex number, a vector or a matrix.

The gold decides by what it does with its letters; a response only by the usual letter for it. Two expressions
are equal when they are equal for all values in these domains."""

from enum import Enum, auto

from verifiers.math.arithmetic import exact_or_none
from verifiers.math.nodes import FunctionCall, Modulo, Node, Number, Power, Product, Sum, Symbol
from verifiers.math.trees import MINUS_ONE, constants, flat_factors, free_symbols, walk

_INTEGER_FUNCTIONS = frozenset(("gcd", "lcm"))
_NATURAL_FUNCTIONS = frozenset(("binomial", "factorial", "double_factorial"))
JUMPING = frozenset(("floor", "ceiling", "sign"))
"""Functions with values of their own at single points."""
_INTEGER_LETTERS = frozenset("ijklmnpqMN")
_COMPLEX_LETTERS = frozenset("zw")
_COMPLEX_FUNCTIONS = frozenset("real imaginary argument conjugate".split())
_VECTOR = "vector "
_DIMENSIONS = frozenset("MLT")
_TRANSPOSED = Symbol("T")


class Domain(Enum):
    REAL = auto()
    INTEGER = auto()
    NATURAL = auto()
    """Letters of factorials and binomials, where n chooses as many as k of it."""
    COMPLEX = auto()
    VECTOR = auto()
    MATRIX = auto()


def domains(gold: Node, response: Node, integers: frozenset[str] = frozenset()) -> dict[str, Domain]:
    """The domain of each letter of the gold. `integers`: letters that are said to be integers."""
    letters = free_symbols(gold)
    whole = integers | _integers(gold) | {name for name in _integers(response) if _is_usual(name)}
    natural = _counted(gold) | {name for name in _counted(response) if _is_usual(name)}
    complex_ones = complex_letters(gold) | complex_letters(response)
    matrices = _matrices(gold) | (_matrices(response) & {name for name in letters if name.isupper()})
    found = {}
    for name in letters:
        if name.startswith(_VECTOR):
            found[name] = Domain.VECTOR
        elif name in matrices:
            found[name] = Domain.MATRIX
        elif name in natural:
            found[name] = Domain.NATURAL
        elif name in whole:
            found[name] = Domain.INTEGER
        else:
            found[name] = Domain.COMPLEX if name in complex_ones else Domain.REAL
    return found


def _is_usual(name: str) -> bool:
    return name.partition("_")[0] in _INTEGER_LETTERS


def _counted(side: Node) -> set[str]:
    calls = [
        item for item in walk(side) if isinstance(item, FunctionCall) and item.name in _NATURAL_FUNCTIONS
    ]
    return {name for call in calls for name in free_symbols(call)}


def _integers(side: Node) -> set[str]:
    found: set[str] = set()
    for item in walk(side):
        match item:
            case FunctionCall(name, known=True) if name in _INTEGER_FUNCTIONS:
                found |= free_symbols(item)
            case Modulo():
                found |= free_symbols(item)
            case FunctionCall("floor" | "ceiling"):
                found |= {name for name in free_symbols(item) if _is_usual(name)}
            case FunctionCall("sin" | "cos" | "tan") if "pi" in constants(item):
                found |= {name for name in free_symbols(item) if name in ("k", "m", "n")}
            case Power(exponent=exponent) if is_alternating(item):
                found |= free_symbols(exponent)
    return found


def is_alternating(power: Power) -> bool:
    """Whether it is a negative number to a power with letters, (-1)^n."""
    base = exact_or_none(power.base) if free_symbols(power.exponent) else None
    return base is not None and base < 0


def complex_letters(side: Node) -> set[str]:
    r"""Letters under Re, Im, arg or a conjugate, and z and w in |z|."""
    found: set[str] = set()
    for item in walk(side):
        match item:
            case FunctionCall(name, known=True) if name in _COMPLEX_FUNCTIONS:
                found |= free_symbols(item)
            case FunctionCall("abs", (inner,)):
                found |= {name for name in free_symbols(inner) if name.partition("_")[0] in _COMPLEX_LETTERS}
    return found


def _matrices(side: Node) -> set[str]:
    r"""Capitals of a side that writes P^{-1}AP, A^T, AB-BA, \det A or (AB)^{-1}."""
    if not any(_is_of_matrices(item) for item in walk(side)):
        return set()
    capitals = {name for name in free_symbols(side) if name.partition("_")[0].isupper() and name != "T"}
    return capitals.union(*(_transposed(item) for item in walk(side)))


def _is_of_matrices(item: Node) -> bool:
    match item:
        case FunctionCall("trace" | "det"):
            return True
        case Power(base, exponent) if exponent == _TRANSPOSED:
            return _capitals(base) != ()
        case Power(Product() as base, exponent) if exponent == MINUS_ONE:
            return _are_matrices(_capitals(base))
        case Product():
            return _is_conjugation(_capitals(item)) or _is_inverse(item) or bool(_transposed(item))
        case Sum(terms):
            orders = [order for term in terms if len(order := _capitals(term)) > 1]
            return any(one != other and sorted(one) == sorted(other) for one in orders for other in orders)
    return False


def _capitals(node: Node) -> tuple[str, ...]:
    """The capitals of a product of nothing else but signs and whole powers; empty for anything else."""
    found: list[str] = []
    for factor in flat_factors(node):
        match factor:
            case Symbol(name) | Power(Symbol(name), Number()) if name.partition("_")[0].isupper():
                found.append(name)
            case Number():
                continue
            case _:
                return ()
    return tuple(found)


def _is_conjugation(letters: tuple[str, ...]) -> bool:
    """Whether a letter comes back after another one: ABA, which of numbers would be A^2 B."""
    return any(
        letters[first] == letters[last] and len(set(letters[first:last])) > 1
        for first in range(len(letters))
        for last in range(first + 2, len(letters))
    )


def _transposed(item: Node) -> set[str]:
    """The letters that come back after their transpose, x of x^T A x, which of numbers would be x^{T+1} A."""
    factors = flat_factors(item)
    return {
        factor.base.name
        for at, factor in enumerate(factors)
        if isinstance(factor, Power) and factor.exponent == _TRANSPOSED and isinstance(factor.base, Symbol)
        if factor.base in factors[at + 1 :]
    }


def _is_inverse(item: Product) -> bool:
    """A^{-1}B, but no dimensions such as MLT^{-1}."""
    powers = [factor.exponent for factor in flat_factors(item) if isinstance(factor, Power)]
    return bool(powers) and all(power == MINUS_ONE for power in powers) and _are_matrices(_capitals(item))


def _are_matrices(letters: tuple[str, ...]) -> bool:
    return len(set(letters)) > 1 and not _DIMENSIONS.issuperset(letters)
