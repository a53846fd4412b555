r"""Which operations an answer may leave to be computed. Owns the rule against echoes of the problem.

The rule: an answer may use powers, roots, fractions, pi, e, logarithms, and whatever its gold uses. A named
operation (\gcd, 5!, \sin 60^\circ, \int ...) and plain arithmetic (17 \cdot 23, 3 + 4) count only where the
gold has one of the same kind, because otherwise repeating the problem would be an answer to it.

Plain arithmetic is a sum with two or more literal numbers among its terms, or a product with two or more
among its factors, that has no letter of the gold with it (2 \cdot 3x is a way to write 6x), or nothing else
at all (the 2 \cdot 3 in 2 \cdot 3 + x). A literal number is an integer or a decimal as written, its negative,
with a percent or degree sign, and the disguises 17^1 and \frac{34}{2}; a true fraction, a power, a root and a
constant are none. So 2^{10}, 3 \cdot 2^5, 2\sqrt{3}+1, 1-\frac{1}{2^{10}}, 5 \cdot 10^3 and
\frac{1}{2}+\frac{\pi}{3} are answers. A gold with any operation on numbers allows plain arithmetic too."""

import re
from collections.abc import Iterator
from fractions import Fraction

from verifiers.math.arithmetic import exact_or_none
from verifiers.math.domains import is_alternating
from verifiers.math.nodes import (
    Based,
    Degrees,
    FunctionCall,
    Listing,
    Node,
    Number,
    Opaque,
    Operation,
    Percent,
    Power,
    Product,
    Quotient,
    Relation,
    SetOperation,
    Sum,
    Text,
)
from verifiers.math.relations import value_of_chain
from verifiers.math.trees import MINUS_ONE, constants, free_symbols, is_name, walk

ARITHMETIC = "arithmetic"
"""The kind of 17 \\cdot 23 and 3 + 4."""

_TEN = Number(Fraction(10))
_COUNTING = "factorial or binomial"
_TRIGONOMETRY = "trigonometry"

_KINDS: dict[str, str] = {
    # by the name of a call or an operation
    **dict.fromkeys(("gcd", "lcm"), "gcd or lcm"),
    **dict.fromkeys(("floor", "ceiling"), "rounding"),
    **dict.fromkeys(("factorial", "double_factorial", "binomial"), _COUNTING),
    **dict.fromkeys(("max", "min"), "maximum or minimum"),
    **dict.fromkeys(("sum", "product"), "sum or product"),
    "integral": "integral", "limit": "limit", "derivative": "derivative", "det": "determinant",
    **dict.fromkeys(("real", "imaginary", "argument"), "part of a complex number"),
    "abs": "absolute value", "sign": "sign",
    **dict.fromkeys(
        ("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "sinh",
         "cosh", "tanh", "coth", "sech", "csch", "asinh", "acosh", "atanh"),
        _TRIGONOMETRY,
    ),
}  # fmt: skip
# In letters these are closed forms: \binom{n}{2} for \frac{n(n-1)}{2}, |x| for \sqrt{x^2}.
_CLOSED_IN_LETTERS = {_COUNTING, "absolute value"}
# By the spelling of a formula that has no reading, which is equal to itself only.
_OPAQUE_KINDS = (
    (re.compile(r"\\(?:sum|prod)(?![a-z])"), "sum or product"),
    (re.compile(r"\\(?:i*int|oint)(?![a-z])"), "integral"),
    (re.compile(r"\\(?:lim|limsup|liminf|sup|inf)(?![a-z])"), "limit"),
    (re.compile(r"\\(?:partial|nabla)(?![a-z])"), "derivative"),
)
# By 1 it leaves nothing to compute.
_DIVISION = re.compile(r"(?:\\div(?![A-Za-z])|÷)(?!\s*\{?\s*1(?![\d.]))")


def foreign_operation(gold: Node, response: Node) -> str | None:
    """The kind of an operation that `response` leaves to be computed and `gold` has none of, or None.

    In a chain of equal sides (5! = 120) one side without such an operation is enough: it is the answer."""
    letters = free_symbols(gold)
    if isinstance(response, Relation) and "~" in response.operators:
        # \sin 60^\circ \approx 0.87: the side that is compared.
        value = value_of_chain(gold.sides[-1] if isinstance(gold, Relation) else gold, response)
        response = response if value is None else value
    return _foreign(response, operation_kinds(gold), letters)


def undone_operation(gold: Node, response: Node, gold_text: str, response_text: str) -> str | None:
    r"""`foreign_operation`, and 48 \div 2 for 24: the trees do not tell the sign from a fraction."""
    if _DIVISION.search(response_text.rpartition("=")[2]) and not _DIVISION.search(gold_text):
        value = exact_or_none(gold)
        if value is not None and value.denominator == 1:
            return "division"
    return foreign_operation(gold, response)


def operation_kinds(gold: Node) -> frozenset[str]:
    """The kinds of operations that a gold has, and that its answers may have therefore."""
    kinds = set(_kinds(gold, frozenset()))
    if any(isinstance(item, Power) and "i" in constants(item.exponent) for item in walk(gold)):
        # e^{i\pi/3} and its trigonometric form.
        kinds.add(_TRIGONOMETRY)
    if any(isinstance(item, Power) and is_alternating(item) for item in walk(gold)):
        # (-1)^n is \\cos n\\pi.
        kinds.add(_TRIGONOMETRY)
    if any(isinstance(item, Operation) for item in walk(gold)):
        # \int \frac{dx}{1+x^2} is an arctangent, \prod_{k=1}^n k a factorial, \int \frac{dx}{x} has |x|.
        kinds |= {_TRIGONOMETRY, _COUNTING, "absolute value"}
    if kinds and not free_symbols(gold):
        kinds.add(ARITHMETIC)
    return frozenset(kinds)


def _foreign(response: Node, allowed: frozenset[str], letters: frozenset[str]) -> str | None:
    if isinstance(response, Relation) and set(response.operators) == {"="}:
        values = [
            side
            for side in response.sides
            if not isinstance(side, Text) and not is_name(side) and free_symbols(side) <= letters
        ]
        # A side with letters and one without are an equation, of which both sides are the answer.
        if len({bool(free_symbols(side)) for side in values}) == 1:
            found = [_foreign(side, allowed, letters) for side in values]
            return None if None in found else found[-1]
    if isinstance(response, Listing):
        each = (_foreign(item, allowed, letters) for item in response.items)
        return next((kind for kind in each if kind is not None), None)
    return next((kind for kind in _kinds(response, letters) if kind not in allowed), None)


def _kinds(node: Node, letters: frozenset[str]) -> Iterator[str]:
    """The kind of each operation in the tree, without the closed forms in `letters`."""
    for item in walk(node):
        kind = _kind(item, letters)
        if kind is None or (kind in _CLOSED_IN_LETTERS and not letters.isdisjoint(free_symbols(item))):
            continue
        yield kind


def _kind(item: Node, letters: frozenset[str]) -> str | None:
    match item:
        case Sum() | Product():
            return ARITHMETIC if _is_arithmetic(item, letters) else None
        case FunctionCall(name, known=known):
            return _KINDS.get(name) if known else None
        case Operation(name):
            return _KINDS.get(name)
        case SetOperation(operator):
            # Unions and differences are how such sets are written.
            return "intersection" if operator == "intersection" else None
        case Opaque(spelling):
            return next((kind for pattern, kind in _OPAQUE_KINDS if pattern.search(spelling)), None)
    return None


def _is_arithmetic(node: Sum | Product, letters: frozenset[str]) -> bool:
    members = list(_members(node))
    num_literals = sum(map(_is_literal, members))
    return num_literals > 1 and (num_literals == len(members) or letters.isdisjoint(free_symbols(node)))


def _members(node: Sum | Product) -> Iterator[Node]:
    """The terms or factors, those of a sum in a sum too, without the factor -1 that a minus sign makes."""
    match node:
        case Sum(terms):
            for term in terms:
                yield from _members(term) if isinstance(term, Sum) else (term,)
        case Product(factors):
            for factor in factors:
                if factor != MINUS_ONE:
                    yield from _members(factor) if isinstance(factor, Product) else (factor,)


def _is_literal(node: Node) -> bool:
    match node:
        case Number() | Based():
            return True
        case Percent(marked) | Degrees(marked):
            return _is_literal(marked)
        case Product():
            # -(5), written with a minus sign before what is no bare number.
            factors = list(_members(node))
            return len(factors) == 1 and _is_literal(factors[0])
        case Power(base, exponent):
            # 4.2 \cdot 10^1 is scientific notation.
            return base != _TEN and _is_literal(base) and exact_or_none(exponent) in (0, 1)
        case Quotient(top, bottom) if _is_literal(top) and _is_literal(bottom):
            value = exact_or_none(node)
            return value is not None and value.denominator == 1
    return False
