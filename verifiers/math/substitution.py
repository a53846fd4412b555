r"""Replaces operations by their values: \sum_{k=1}^{10} k becomes 55. The cheapest method goes first.

Short sums and products are written out and added up. Definite integrals of numbers stay where the quadrature
is sure of them. Sympy is asked for the rest. What has no value stays as it is and equals only itself:
undecided is not equal. A response's operations are evaluated only when the gold has one, or when the response
itself says what they come to."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from verifiers.math.arithmetic import Undecided, exact_value, numeric_value
from verifiers.math.costs import require_affordable
from verifiers.math.nodes import (
    FunctionCall,
    Matrix,
    Node,
    Number,
    Operation,
    Power,
    Product,
    Quotient,
    Relation,
    Sum,
    Symbol,
)
from verifiers.math.numbers import NotExact, NotNumber
from verifiers.math.scalars import same_scalar
from verifiers.math.trees import free_symbols, infinity_sign, rebuilt, replaced, size, walk

MAX_TERMS = 5_000
MAX_KEPT_TERMS = 400
MAX_WRITTEN_OUT = 60_000
MAX_KEPT_SIZE = 6_000
MAX_INTEGRAND = 80
MAX_PARAMETERS = 4
_DIGITS_OF_CHECK = 20
# In 97ths, for the letters in their order: large then small, small then large, all small.
_PARAMETERS = ((301, 68, 184), (44, 223, 78), (126, 19, 281), (29, 15, 58), (210, 190, 9))
_CONSTANTS_OF_INTEGRATION = frozenset("CcKk") | {"C_1", "C_0", "c_1"}


def has_operation(node: Node) -> bool:
    """Whether the tree has an operation to evaluate: a sum, a determinant, arithmetic with matrices."""
    return any(map(_is_operation, walk(node)))


def _is_operation(node: Node) -> bool:
    match node:
        case Operation():
            return True
        case FunctionCall("det" | "abs", (argument, *_)):
            return _is_matrix(argument)
        case Product(factors):
            return sum(map(_is_matrix, factors)) > 1
        case Power(base):
            return _is_matrix(base)
        case Sum(terms):
            return any(map(_is_matrix, terms))
    return False


def _is_matrix(node: Node) -> bool:
    """Whether the value is a matrix, by the look of it."""
    match node:
        case Matrix():
            return True
        case Product(parts) | Sum(parts):
            return any(map(_is_matrix, parts))
        case Quotient(part) | Power(part):
            return _is_matrix(part)
    return False


def settled(gold: Node, response: Node) -> tuple[Node, Node] | None:
    """Both sides with their operations evaluated; what has no value is a name, the same on both sides.

    None when the response holds an operation without a value that the gold does not hold, or leaves one to be
    computed where the gold leaves none."""
    if not has_operation(gold):
        if not has_operation(response):
            return gold, response
        if not _ends_computed(response):
            return None
    names: dict[Node, Node] = {}

    def new_name(node: Node) -> Node:
        # An antiderivative is compared by its derivative, which needs it as it is.
        new = node if is_integral_without_ends(node) else Symbol(f"operation {len(names)}")
        return names.setdefault(node, new)

    gold = _settle(gold, new_name)
    unknown: list[Node] = []

    def name(node: Node) -> Node:
        if node not in names:
            unknown.append(node)
        return names.get(node, node)

    response = _settle(response, name)
    return None if unknown else (gold, response)


def _ends_computed(response: Node) -> bool:
    r"""\int_0^1 x^2 dx = \frac13: the operation and, after it, what it is."""
    return (
        isinstance(response, Relation)
        and set(response.operators) <= {"=", "~"}
        and not has_operation(response.sides[-1])
    )


def _settle(node: Node, name: Callable[[Node], Node]) -> Node:
    if not _is_operation(node):
        return rebuilt(node, lambda part: _settle(part, name))
    value = _value(node)
    return name(node) if value is None else value


@lru_cache(maxsize=1024)
def _value(node: Node) -> Node | None:
    """The value of one operation, or the node itself where the numeric evaluation can do it; None without."""
    if isinstance(node, Operation):
        written = _written_out(node)
        if written is not None:
            return written
        if _is_plain_integral(node) and not free_symbols(node) and _has_number(node):
            return node
        if is_integral_without_ends(node):
            return None
    try:
        value = _computed(node)
    except Undecided:
        value = None
    if not (isinstance(node, Operation) and _is_plain_integral(node)):
        return value
    if not 0 < len(free_symbols(node)) <= MAX_PARAMETERS:
        return value
    if value is not None and _is_confirmed(node, value):
        return value
    return node if _is_confirmed(node, node) else None


def _computed(node: Node) -> Node:
    """Sympy's value. Raises Undecided."""
    require_affordable(node)
    # After everything cheap, and in a worker: importing sympy takes as long as a thousand comparisons.
    from verifiers.math import algebra

    return algebra.value_of(node)


def _is_plain_integral(node: Operation) -> bool:
    """Whether it is a definite integral about which the quadrature can say something."""
    return (
        node.name == "integral"
        and node.bound is not None
        and not has_operation(node.body)
        and size(node.body) <= MAX_INTEGRAND
    )


def _has_number(node: Operation) -> bool:
    """Whether the quadrature is sure of an integral without letters."""
    try:
        numeric_value(node)
    except NotNumber:
        return False
    return True


def _is_confirmed(node: Operation, value: Node) -> bool:
    r"""Whether the quadrature agrees with sympy's value of an integral with letters: at two points of their
    values, or, of an integral to infinity that it cannot do (\int_0^\infty \frac{\sin ax}{x} dx), at all.

    Sympy integrates across poles and branches, where its antiderivative is none: \frac{1}{a+\cos x}."""
    letters = sorted(free_symbols(node))
    num_agreed = 0
    for sizes in _PARAMETERS:
        values = {name: Fraction(sizes[at % len(sizes)], 97) for at, name in enumerate(letters)}
        try:
            measured = numeric_value(node, values, digits=_DIGITS_OF_CHECK)
        except NotNumber:
            continue
        if value is node:
            num_agreed += 1
        elif not _is_near(value, values, measured):
            return False
        else:
            num_agreed += 1
        if num_agreed == 2:
            return True
    is_infinite = any(infinity_sign(part) for part in node.parts)
    return num_agreed > 0 or (is_infinite and value is not node)


def _is_near(value: Node, values: dict[str, Fraction], measured: Any) -> bool:
    try:
        given = numeric_value(value, values, digits=2 * _DIGITS_OF_CHECK)
    except NotNumber:
        return False
    return bool(abs(given - measured) <= 1e-10 * (1 + abs(measured)))


def _written_out(node: Operation) -> Node | None:
    """A short sum or product between whole numbers, term by term."""
    if node.name not in ("sum", "product") or node.bound is None:
        return None
    try:
        low, high = (exact_value(part) for part in node.parts)
    except (NotExact, NotNumber):
        return None
    body_size = size(node.body)
    num_terms = int(high - low) + 1
    if low.denominator != 1 or high.denominator != 1 or num_terms > MAX_TERMS:
        return None
    if num_terms * body_size > MAX_WRITTEN_OUT or has_operation(node.body):
        return None
    if num_terms < 1:
        return Number(Fraction(node.name == "product"))
    bound = node.bound
    terms = tuple(replaced(node.body, bound, Number(low + step)) for step in range(num_terms))
    whole: Node = Sum(terms) if node.name == "sum" else Product(terms)
    try:
        return Number(exact_value(whole))
    except NotExact:
        is_short = num_terms <= MAX_KEPT_TERMS and num_terms * body_size <= MAX_KEPT_SIZE
        return whole if is_short else None
    except NotNumber:
        return None


def is_integral_without_ends(node: Node) -> bool:
    return isinstance(node, Operation) and node.name == "integral" and node.bound is None


def is_antiderivative(gold: Operation, response: Node) -> bool:
    r"""Whether the response's derivative is the integrand of the gold \int f dx, whatever its constant."""
    extra = free_symbols(response) - free_symbols(gold)
    if len(extra) > 1 or not extra <= _CONSTANTS_OF_INTEGRATION or has_operation(response):
        return False
    try:
        require_affordable(response)
        from verifiers.math import algebra

        derivative = algebra.derivative_of(response, gold.letter)
    except Undecided:
        return False
    return same_scalar(gold.body, derivative)
