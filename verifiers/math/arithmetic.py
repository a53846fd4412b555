"""The value of a tree: an exact fraction, or any number of digits. Owns every budget of the arithmetic.

Nothing here runs long: results above MAX_BITS, powers of more than MAX_EXPONENT_BITS and arguments that would
need an enormous reduction raise NotNumber before the work is done. Each thread has its own mpmath context."""

import math
import threading
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath

from verifiers.math import nodes
from verifiers.math.functions import NUMERIC_FUNCTIONS
from verifiers.math.nodes import Node
from verifiers.math.quadrature import integral

MAX_BITS = 200_000
MAX_TOTAL_BITS = 600_000
MAX_EXPONENT_BITS = 10**30
MAX_FACTORIAL = 5_000
_MAX_REDUCTION = 10**300
_NOTABLE_LOSS_BITS = 20

Decimal = Any
"""An mpmath number, real or complex."""


class NotExact(Exception):
    """The value exists, but not as a fraction that we can reach exactly."""


class NotNumber(Exception):
    """There is no value, or it is out of every budget."""


class OutOfBudget(NotNumber):
    """A value that may exist, but is out of every budget."""


class Undecided(Exception):
    """Neither we nor sympy find a value: out of the bounds, beyond the means, or there is none."""


def exact_value(node: Node, values: Mapping[str, Fraction] = {}) -> Fraction:
    """The value as a fraction, with `values` for the symbols. Raises NotExact or NotNumber."""
    return _Exact(values).value(node)


class _Exact:
    def __init__(self, values: Mapping[str, Fraction]) -> None:
        self._values = values
        self._bits_left = MAX_TOTAL_BITS

    def value(self, node: Node) -> Fraction:
        match node:
            case nodes.Number():
                return node.value
            case nodes.Symbol(name) if name in self._values:
                return self._values[name]
            case nodes.Sum(terms):
                total = self.value(terms[0])
                for term in terms[1:]:
                    total = self._checked(total + self.value(term))
                return total
            case nodes.Product(factors):
                result = self.value(factors[0])
                for factor in factors[1:]:
                    result = self._checked(result * self.value(factor))
                return result
            case nodes.Quotient():
                top, bottom = self.value(node.top), self.value(node.bottom)
                if bottom == 0:
                    raise NotNumber("a division by zero")
                return self._checked(top / bottom)
            case nodes.Power(base, exponent):
                return self._power(self.value(base), self.value(exponent))
            case nodes.Percent(hundredths):
                return self.value(hundredths) / 100
            case nodes.Based():
                return Fraction(based_value(node))
            case nodes.FunctionCall(known=True):
                return self._call(node)
        raise NotExact

    def _checked(self, value: Fraction) -> Fraction:
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        if bits > 512:
            self._bits_left -= bits
            if bits > MAX_BITS or self._bits_left < 0:
                raise NotExact
        return value

    def _power(self, base: Fraction, exponent: Fraction) -> Fraction:
        if exponent.denominator != 1:
            return self._root(base, exponent)
        power = exponent.numerator
        if base == 0 and power <= 0:
            raise NotNumber("0 to a power that is not positive")
        if base in (0, 1, -1):
            return base if power % 2 else base * base
        bits = (base.numerator.bit_length() + base.denominator.bit_length()) * abs(power)
        if bits > MAX_BITS:
            raise NotExact
        return self._checked(base**power)

    @staticmethod
    def _root(base: Fraction, exponent: Fraction) -> Fraction:
        """A square root that comes out even; every other root is left to the digits."""
        if exponent not in (Fraction(1, 2), Fraction(-1, 2)) or base <= 0:
            raise NotExact
        top, bottom = math.isqrt(base.numerator), math.isqrt(base.denominator)
        if top * top != base.numerator or bottom * bottom != base.denominator:
            raise NotExact
        return Fraction(top, bottom) if exponent > 0 else Fraction(bottom, top)

    def _call(self, node: nodes.FunctionCall) -> Fraction:
        if node.name not in _EXACT_CALLS:
            raise NotExact
        arguments = [self.value(argument) for argument in node.arguments]
        return self._checked(_EXACT_CALLS[node.name](arguments))


def _whole(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or value < 0:
        raise NotExact
    if value > limit:
        raise NotExact
    return value.numerator


def _factorial(arguments: list[Fraction]) -> Fraction:
    return Fraction(math.factorial(_whole(arguments[0], MAX_FACTORIAL)))


def _double_factorial(arguments: list[Fraction]) -> Fraction:
    return Fraction(math.prod(range(_whole(arguments[0], MAX_FACTORIAL), 0, -2)))


def _binomial(arguments: list[Fraction]) -> Fraction:
    return Fraction(math.comb(_whole(arguments[0], MAX_FACTORIAL), _whole(arguments[1], MAX_FACTORIAL)))


def _all_whole(arguments: list[Fraction]) -> list[int]:
    if any(argument.denominator != 1 for argument in arguments):
        raise NotExact
    return [argument.numerator for argument in arguments]


_EXACT_CALLS: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "sqrt": lambda arguments: _Exact._root(arguments[0], Fraction(1, 2)) if arguments[0] else Fraction(0),
    "factorial": _factorial,
    "double_factorial": _double_factorial,
    "binomial": _binomial,
    "abs": lambda arguments: abs(arguments[0]),
    "floor": lambda arguments: Fraction(math.floor(arguments[0])),
    "ceiling": lambda arguments: Fraction(math.ceil(arguments[0])),
    "gcd": lambda arguments: Fraction(math.gcd(*_all_whole(arguments))),
    "lcm": lambda arguments: Fraction(math.lcm(*_all_whole(arguments))),
    "max": lambda arguments: max(arguments),
    "min": lambda arguments: min(arguments),
}


def based_value(node: nodes.Based) -> int:
    try:
        return int(node.digits, node.base)
    except ValueError as error:
        raise NotNumber(f"{node.digits} is no number in base {node.base}") from error


_local = threading.local()


def thread_context() -> Any:
    """The mpmath context of this thread, at the precision that was last asked for."""
    if not hasattr(_local, "context"):
        _local.context = mpmath.MPContext()
    return _local.context


class Evaluation(NamedTuple):
    """The value of a tree, and what was met on the way to it."""

    value: Decimal
    largest: float
    """log2 of the largest magnitude."""
    smallest: float
    """log2 of the smallest."""
    lost_bits: float
    """Precision that was lost where small errors grow: in large exponents, beside branch points."""
    stayed_real: bool
    """Whether no part of the tree was off the real line."""


def numeric_value(
    node: Node,
    values: Mapping[str, Fraction] = {},
    *,
    digits: int = 40,
) -> Evaluation:
    """The value to `digits` digits. Raises NotNumber."""
    context = thread_context()
    context.dps = digits
    numeric = _Numeric(context, values)
    try:
        value = numeric.value(node)
    except (ZeroDivisionError, ValueError, OverflowError, ArithmeticError, TypeError) as error:
        raise NotNumber(str(error)) from error
    if not context.isfinite(value):
        raise NotNumber("an infinite or undefined value")
    return Evaluation(value, numeric.largest, numeric.smallest, numeric.lost_bits, numeric.stayed_real)


def real_fraction(node: Node, values: Mapping[str, Fraction] = {}, *, digits: int = 60) -> Fraction:
    """The value of a real expression, to `digits` digits when it is irrational. Raises NotNumber."""
    try:
        return exact_value(node, values)
    except NotExact:
        value, largest, *_ = numeric_value(node, values, digits=digits)
    if getattr(value, "imag", 0) != 0 or largest > 10_000:
        raise NotNumber("not a real number of ordinary size")
    sign, mantissa, exponent, _ = value.real._mpf_
    fraction = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -fraction if sign else fraction


class _Numeric:
    """One evaluation. Keeps the range of magnitudes it met, which says how many digits a comparison needs."""

    def __init__(
        self, context: Any, values: Mapping[str, Fraction], bound: Mapping[int, Decimal] = {}
    ) -> None:
        self.context = context
        self._values = values
        self._bound = bound
        self.largest = 0.0
        self.smallest = 0.0
        self.lost_bits = 0.0
        self.stayed_real = True

    def value(self, node: Node) -> Decimal:
        result = self._value(node)
        self._note(result)
        return result

    def _note(self, result: Decimal) -> None:
        if result:
            size = float(self.context.mag(result))
            if size > self.largest:
                self.largest = size
            elif size < self.smallest:
                self.smallest = size
            if self.stayed_real and self.context.im(result):
                self.stayed_real = False

    def _value(self, node: Node) -> Decimal:
        match node:
            case nodes.Number():
                return self._fraction(node.value)
            case nodes.Symbol(name):
                if name not in self._values:
                    raise NotNumber(f"no value for {name}")
                return self._fraction(self._values[name])
            case nodes.Sum(terms):
                total = self.value(terms[0])
                for term in terms[1:]:
                    total = total + self.value(term)
                return total
            case nodes.Product(factors):
                result = self.value(factors[0])
                for factor in factors[1:]:
                    result = result * self.value(factor)
                return result
            case nodes.Quotient(top, bottom):
                return self.value(top) / self.value(bottom)
            case nodes.Power(base, exponent):
                return self.power(self.value(base), self.value(exponent))
            case nodes.Constant(name):
                return self._constant(name)
            case nodes.Percent(hundredths):
                return self.value(hundredths) / 100
            case nodes.Degrees(degrees):
                return self.value(degrees) * self.context.pi / 180
            case nodes.Based():
                return self.context.mpf(based_value(node))
            case nodes.FunctionCall():
                return self._call(node)
            case nodes.Bound(height):
                return self._bound[height]
            case nodes.Operation("integral", bound=nodes.Bound(height)) if not self._bound:
                return self._integral(node, height)
        raise NotNumber(f"a {type(node).__name__} has no value")

    def _integral(self, node: nodes.Operation, height: int) -> Decimal:
        def integrand(point: Decimal) -> Decimal:
            # On its own, because what it meets near the ends says nothing about the digits of the integral.
            return _Numeric(self.context, self._values, {height: point}).value(node.body)

        return integral(self.context, node, self.value, integrand, is_closed=not self._values)

    def _fraction(self, value: Fraction) -> Decimal:
        return self.context.mpf(value.numerator) / value.denominator

    def _constant(self, name: str) -> Decimal:
        match name:
            case "pi":
                return +self.context.pi
            case "e":
                return +self.context.e
            case "i":
                return self.context.mpc(0, 1)
        raise NotNumber("infinity has no value")

    def power(self, base: Decimal, exponent: Decimal) -> Decimal:
        context = self.context
        if not base:
            if context.re(exponent) > 0:
                return context.mpf(0)
            raise NotNumber("0 to a power that is not positive")
        self.bounded_exponent(exponent, abs(context.mag(base)) + 2)
        return context.power(base, exponent)

    def bounded_exponent(self, exponent: Decimal, bits: float = 2.0) -> None:
        if not exponent:
            return
        size = float(self.context.mag(exponent)) + math.log2(bits)
        if size > math.log2(MAX_EXPONENT_BITS):
            raise OutOfBudget("a power out of every budget")
        if size > _NOTABLE_LOSS_BITS:
            self.lost_bits += size

    def note_branch_point(self, argument: Decimal) -> None:
        """Beside 1 and -1 an error e of the argument may become its root, or e over the distance."""
        distance = abs(1 - abs(argument))
        size = float(self.context.mag(distance)) if distance else -float(self.context.prec)
        if -size > _NOTABLE_LOSS_BITS:
            self.lost_bits += min(-size, self.context.prec / 2)

    def bounded(self, argument: Decimal, limit: int = _MAX_REDUCTION) -> Decimal:
        if abs(argument) > limit:
            raise OutOfBudget("an argument out of every budget")
        return argument

    def _call(self, node: nodes.FunctionCall) -> Decimal:
        arguments = [self.value(argument) for argument in node.arguments]
        if not node.known:
            return self._unknown(node.name, arguments)
        function = NUMERIC_FUNCTIONS.get(node.name)
        if function is None:
            raise NotNumber(f"{node.name} has no value")
        return function(self, *arguments)

    def _unknown(self, name: str, arguments: list[Decimal]) -> Decimal:
        """The writer's own f: some fixed generic function, so that f(x+1) = f(1+x) but f(x) != f(y)."""
        seed = zlib.crc32(f"{name}/{len(arguments)}".encode())
        total = self.context.mpf(seed % 997 + 1) / 991
        for position, argument in enumerate(arguments, start=1):
            weight = self.context.mpf(seed % (89 + position) + 7) / 53
            total = total + self.context.sin(self.bounded(argument) * weight + position) * (position + 1)
        return total

    def root(self, radicand: Decimal, degree: Decimal) -> Decimal:
        context = self.context
        if degree == 3 or (context.isint(degree) and int(self.bounded(degree)) % 2 == 1):
            # The real root of a negative number, as every schoolbook means it.
            if context.im(radicand) == 0 and context.re(radicand) < 0:
                return -self.power(-context.re(radicand), 1 / degree)
        return self.power(radicand, 1 / degree)

    def log(self, argument: Decimal, base: Decimal | None = None) -> Decimal:
        context = self.context
        return context.log(argument) / context.log(10 if base is None else base)

    def exp(self, argument: Decimal) -> Decimal:
        self.bounded_exponent(argument)
        return self.context.exp(argument)

    def factorial(self, argument: Decimal) -> Decimal:
        return self.context.factorial(self.bounded(argument, 10**6))

    def double_factorial(self, argument: Decimal) -> Decimal:
        return self.context.fac2(self.bounded(argument, 10**6))

    def binomial(self, top: Decimal, bottom: Decimal) -> Decimal:
        return self.context.binomial(self.bounded(top, 10**6), self.bounded(bottom, 10**6))

    def real(self, argument: Decimal) -> Decimal:
        if self.context.im(argument) != 0:
            raise NotNumber("a complex number where an order is needed")
        return self.context.re(argument)

    def rounded(self, argument: Decimal, function: str) -> Decimal:
        return getattr(self.context, function)(self.bounded(self.real(argument)))

    def extreme(self, choose: Callable[..., Decimal], arguments: tuple[Decimal, ...]) -> Decimal:
        return choose(self.real(argument) for argument in arguments)
