r"""How much evaluating a tree would produce: an upper bound from the tree alone, before it is evaluated.

Sympy has no budgets of its own, so a tree is put to it only when the digits and the terms of every part, all
together, are few: \prod_{k=1}^{1000000} k is 20 million bits, (x+a+b)^{200} is 20 thousand terms. The bounds
are those of schoolbook arithmetic without cancellation, on numerators and denominators apart, and of
expanding everything; a letter counts as one term."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from verifiers.math import nodes
from verifiers.math.arithmetic import Undecided, exact_value, real_fraction
from verifiers.math.nodes import Node
from verifiers.math.numbers import NotExact, NotNumber
from verifiers.math.trees import children, constants, free_symbols, walk

MAX_WORK = 1_500_000
"""Bits of all terms of all parts."""
MAX_TOWER = 3
"""Letters in exponents of exponents; what sympy does for a limit grows fast with them."""
_MAX_EXACT_BITS = 60
_TERMS_BY_HAND = 100
"""Terms that sympy adds up one by one, at most."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds on the value of a node. All but the tower may be infinite."""

    top: float = 1.0
    """Bits of a numerator."""
    bottom: float = 0.0
    """Bits of a denominator."""
    terms: float = 1.0
    degree: float = 0.0
    tower: int = 0

    @property
    def bits(self) -> float:
        return self.top + self.bottom


Ranges = Mapping[int, float]
"""Bits of the letters that sums and products bind, by height; none for a letter without numeric ends."""


def require_affordable(*roots: Node) -> None:
    """Raises Undecided when evaluating the trees would produce too much."""
    meter = _Meter()
    for root in roots:
        meter.bounds(root, {})


class _Meter:
    """Adds up the work of all parts."""

    def __init__(self) -> None:
        self._work_left = float(MAX_WORK)

    def bounds(self, node: Node, ranges: Ranges) -> Bounds:
        found = self._bounds(node, ranges)
        self._work_left -= found.terms * (found.bits + found.degree)
        # Not "< 0", for nan is neither.
        if not self._work_left >= 0:
            raise Undecided("a value of too many digits or terms")
        if found.tower > MAX_TOWER:
            raise Undecided("too many letters in exponents of exponents")
        return found

    def _bounds(self, node: Node, ranges: Ranges) -> Bounds:
        match node:
            case nodes.Number(value):
                return Bounds(value.numerator.bit_length(), value.denominator.bit_length() - 1)
            case nodes.Based(digits, base):
                return Bounds(len(digits) * math.log2(base))
            case nodes.Bound(height):
                return Bounds(ranges.get(height, 1.0), degree=1.0)
            case nodes.Symbol():
                return Bounds(degree=1.0)
            case nodes.Sum(parts):
                return _sum([self.bounds(part, ranges) for part in parts])
            case nodes.Product(parts):
                return _product([self.bounds(part, ranges) for part in parts])
            case nodes.Quotient(top, bottom):
                return _quotient(self.bounds(top, ranges), self.bounds(bottom, ranges))
            case nodes.Power(base, exponent):
                return self._power(base, exponent, ranges)
            case nodes.FunctionCall():
                return self._call(node, ranges)
            case nodes.Matrix(rows):
                return self._matrix(rows, ranges)
            case nodes.Operation():
                return self._operation(node, ranges)
        return _sum([Bounds(), *(self.bounds(part, ranges) for part in children(node))])

    def _power(self, base: Node, exponent: Node, ranges: Ranges) -> Bounds:
        below, above = self.bounds(base, ranges), self.bounds(exponent, ranges)
        if _has_letters(exponent, ranges):
            tower = 1 + max(below.tower, above.tower)
            degree = below.degree + above.degree
            return Bounds(below.bits, below.bits, below.terms + above.terms, degree, tower)
        power = _size(exponent, above)
        if isinstance(base, nodes.Matrix):
            side = len(base.rows)
            terms = _repeated(below.terms * side, power) if below.degree else 1.0
            return Bounds(
                power * (below.top + math.log2(side)), power * below.bottom, terms, power * below.degree
            )
        terms = _num_monomials(below.terms, power)
        top = power * (below.top + (math.log2(below.terms) if below.terms > 1 else 0))
        bottom = power * below.bottom
        if not (isinstance(exponent, nodes.Number) and exponent.value >= 0):
            top = bottom = max(top, bottom)
        return Bounds(top, bottom, terms, power * below.degree, below.tower)

    def _call(self, node: nodes.FunctionCall, ranges: Ranges) -> Bounds:
        arguments = [self.bounds(argument, ranges) for argument in node.arguments]
        tower = max((argument.tower for argument in arguments), default=0)
        match node.name:
            case "det" | "abs" if isinstance(node.arguments[0], nodes.Matrix):
                return _determinant(node.arguments[0], arguments[0])
            case "factorial" | "double_factorial" if not _has_letters(node.arguments[0], ranges):
                size = _size(node.arguments[0], arguments[0])
                return Bounds(size * math.log2(size + 2))
            case "binomial" if not _has_letters(node.arguments[1], ranges):
                size = _size(node.arguments[1], arguments[1])
                if _has_letters(node.arguments[0], ranges):
                    return Bounds(size * math.log2(size + 2), size, size + 1, size, tower)
                whole = _size(node.arguments[0], arguments[0])
                # More than its digits, for sympy takes longer than they tell.
                return Bounds(min(whole, size) * math.log2(whole + 2) + 1)
            case "exp":
                return Bounds(arguments[0].bits, 0.0, arguments[0].terms, arguments[0].degree, tower + 1)
        return Bounds(
            sum(argument.top for argument in arguments) + 1,
            sum(argument.bottom for argument in arguments),
            sum(argument.terms for argument in arguments),
            max((argument.degree for argument in arguments), default=0.0),
            tower,
        )

    def _matrix(self, rows: tuple[tuple[Node, ...], ...], ranges: Ranges) -> Bounds:
        entries = [self.bounds(entry, ranges) for row in rows for entry in row]
        widest = (
            max(getattr(entry, name) for entry in entries) for name in ("top", "bottom", "terms", "degree")
        )
        return Bounds(*widest)

    def _operation(self, node: nodes.Operation, ranges: Ranges) -> Bounds:
        if node.name == "derivative":
            body = self.bounds(node.body, ranges)
            order = _size(node.parts[1], Bounds(4.0))
            growth = (2.0 * body.tower) ** order if body.tower else 1.0
            return Bounds(
                body.top + order * math.log2(body.degree + 2),
                body.bottom,
                body.terms * growth,
                body.degree,
                body.tower,
            )
        ends = [self.bounds(part, ranges) for part in node.parts]
        num_terms = None
        if node.bound is not None and node.name in ("sum", "product"):
            num_terms = _num_terms(node, ends, ranges)
            widest = max(ends[0].top, ends[-1].top)
            inside = {**ranges, node.bound.height: widest} if num_terms is not None else ranges
        else:
            inside = ranges
        body = self.bounds(node.body, inside)
        if node.name == "product":
            return _repeated_product(body, num_terms)
        if node.name == "sum":
            return _repeated_sum(node, body, num_terms)
        if node.name == "integral":
            far = max((end.bits for end in ends), default=0.0)
            return Bounds(
                body.top + body.degree * far,
                body.bottom + body.degree * far,
                body.terms,
                body.degree + 1,
                body.tower,
            )
        return body


def _sum(parts: list[Bounds]) -> Bounds:
    bottom = sum(part.bottom for part in parts)
    return Bounds(
        max(part.top + bottom - part.bottom for part in parts) + math.log2(len(parts)),
        bottom,
        sum(part.terms for part in parts if part.degree) + any(not part.degree for part in parts),
        max(part.degree for part in parts),
        max(part.tower for part in parts),
    )


def _product(parts: list[Bounds]) -> Bounds:
    return Bounds(
        sum(part.top for part in parts),
        sum(part.bottom for part in parts),
        math.prod(part.terms for part in parts),
        sum(part.degree for part in parts),
        max(part.tower for part in parts),
    )


def _quotient(top: Bounds, bottom: Bounds) -> Bounds:
    return Bounds(
        top.top + bottom.bottom,
        top.bottom + bottom.top,
        top.terms + bottom.terms,
        top.degree + bottom.degree,
        max(top.tower, bottom.tower),
    )


def _determinant(matrix: nodes.Matrix, entry: Bounds) -> Bounds:
    """By the rows: each of the products takes one entry of every row."""
    side = len(matrix.rows)
    zero = nodes.Number(Fraction(0))
    by_rows = math.prod(sum(item != zero for item in row) * entry.terms for row in matrix.rows)
    num_products = min(by_rows, math.factorial(min(side, 100)) * _repeated(entry.terms, side))
    return Bounds(
        side * (entry.top + math.log2(side)),
        side * entry.bottom,
        num_products if entry.degree else 1.0,
        side * entry.degree,
        entry.tower,
    )


def _repeated_product(body: Bounds, num_terms: float | None) -> Bounds:
    if num_terms is None:
        return body
    terms = _num_monomials(body.terms, num_terms)
    return Bounds(num_terms * body.top, num_terms * body.bottom, terms, num_terms * body.degree, body.tower)


def _repeated_sum(node: nodes.Operation, body: Bounds, num_terms: float | None) -> Bounds:
    """Bernoulli's numbers for a polynomial; else term by term, where a denominator that runs is another one
    each time."""
    growth = body.degree * math.log2(body.degree + 2)
    terms = body.terms * (body.degree + 1)
    if num_terms is None:
        return Bounds(body.top + growth, body.bottom + growth, terms, body.degree + 1, body.tower)
    by_hand = min(num_terms, _TERMS_BY_HAND) if _runs_below(node.body, node.bound) else 1.0
    return Bounds(
        body.top + by_hand * body.bottom + growth + math.log2(num_terms + 1),
        by_hand * body.bottom + growth,
        terms,
        body.degree + 1,
        body.tower,
    )


def _runs_below(body: Node, bound: Node | None) -> bool:
    """Whether the letter stands in a denominator or in an exponent."""
    for item in walk(body):
        match item:
            case nodes.Quotient(_, part) | nodes.Power(_, part):
                if any(inner == bound for inner in walk(part)):
                    return True
            case nodes.Power(base, nodes.Number(value)) if value < 0:
                if any(inner == bound for inner in walk(base)):
                    return True
    return False


def _num_terms(node: nodes.Operation, ends: list[Bounds], ranges: Ranges) -> float | None:
    """How many terms there are at most between numbers; None when an end is a letter or infinite."""
    if any(_has_letters(part, ranges) or "infinity" in constants(part) for part in node.parts):
        return None
    return 1 + sum(_size(part, end) for part, end in zip(node.parts, ends, strict=True))


def _has_letters(node: Node, ranges: Ranges) -> bool:
    """Whether a letter without numeric bounds is in the tree."""
    return bool(free_symbols(node)) or any(
        isinstance(item, nodes.Bound) and item.height not in ranges for item in walk(node)
    )


def _size(node: Node, bounds: Bounds) -> float:
    """At most the absolute value of a node without letters: as exactly as it is cheap, else by its bits."""
    largest = 2**_MAX_EXACT_BITS
    if any(isinstance(item, nodes.Bound) for item in walk(node)):
        return float(2.0 ** min(bounds.top, _MAX_EXACT_BITS))
    try:
        return float(min(abs(exact_value(node)), largest))
    except (NotExact, NotNumber):
        pass
    try:
        return float(abs(real_fraction(node, digits=15)))
    except NotNumber:
        return float(largest)


def _repeated(factor: float, times: float) -> float:
    """A power, or infinity."""
    return math.inf if times * math.log2(max(factor, 1)) > _MAX_EXACT_BITS else factor**times


def _num_monomials(num_terms: float, power: float) -> float:
    """In a power of a sum: the multisets of `power` of its terms."""
    if num_terms <= 1:
        return 1.0
    if math.isinf(num_terms + power):
        return math.inf
    log = math.lgamma(power + num_terms) - math.lgamma(power + 1) - math.lgamma(num_terms)
    return math.exp(min(log, _MAX_EXACT_BITS))
