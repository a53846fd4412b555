"""The numbers of an evaluation, the place where it happens (values of letters, budgets, what was met), and
the known functions by their names in the tree: exact on fractions where they can be, else on balls.

A real ball stays real where the function does; else the value is complex, and the place notes it."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from flint import acb, acb_mat, acb_poly, arb, arb_poly, fmpq, fmpz

MAX_BITS = 200_000
MAX_TOTAL_BITS = 600_000
_LARGE_BITS = 512

Value = Any
"""fmpq, arb or acb; acb_mat for a vector (a column) or a matrix."""


class NotExact(Exception):
    """The value exists, but not as a fraction that we can reach exactly."""


class NotNumber(Exception):
    """There is no value, or it is out of every budget."""


class OutOfBudget(NotNumber):
    """A value that may exist, but is out of every budget."""


class Place:
    """Where a tree is evaluated, and what was met on the way."""

    __slots__ = ("bits_left", "bound", "has_left_reals", "is_exact", "notes_spread", "spread_bits", "values")

    def __init__(
        self,
        values: Mapping[str, Value],
        bound: Mapping[int, Value] = {},
        *,
        is_exact: bool = False,
        notes_spread: bool = False,
    ) -> None:
        self.values = values
        self.bound = bound
        self.is_exact = is_exact
        """Balls are refused, by NotExact."""
        self.has_left_reals = False
        """Whether a part of the tree was off the real line."""
        self.notes_spread = notes_spread
        self.spread_bits = 0
        """Largest ratio of magnitudes between the terms of one sum, in bits, where it is noted."""
        self.bits_left = MAX_TOTAL_BITS

    def checked(self, value: fmpq) -> Value:
        """The fraction, or its ball when it is out of the budgets."""
        bits = value.height_bits()
        if bits > _LARGE_BITS:
            self.bits_left -= bits
            if bits > MAX_BITS or self.bits_left < 0:
                return self.ball(value)
        return value

    def ball(self, value: Value) -> Value:
        """The number as an arb or acb."""
        if type(value) is fmpq:
            if self.is_exact:
                raise NotExact
            return arb(value)
        # Methods of Arb take any object for their own: nothing else may pass here.
        if type(value) is not arb and type(value) is not acb:
            raise NotNumber("something else where a number is needed")
        return value

    def real(self, value: Value) -> Value:
        """The fraction or real ball, where an order is needed."""
        if type(value) is acb and value.imag == 0:
            return value.real
        if type(value) not in (fmpq, arb):
            raise NotNumber("no real number where an order is needed")
        return value

    def note_spread(self, values: Sequence[Value]) -> None:
        sizes = [size for value in values if (size := magnitude(value)) is not None]
        if sizes:
            self.spread_bits = max(self.spread_bits, max(sizes) - min(sizes))


def magnitude(value: Value) -> int | None:
    """About the binary logarithm of the absolute value; None for 0 and for matrices."""
    if type(value) is fmpq:
        return int(value.p).bit_length() - int(value.q).bit_length() if value else None
    if type(value) is acb:
        sizes = [size for part in (value.real, value.imag) if (size := magnitude(part)) is not None]
        return max(sizes, default=None)
    if type(value) is not arb:
        return None
    mantissa, exponent = value.mid().man_exp()
    return int(exponent) + int(mantissa).bit_length() if mantissa else None


MAX_FACTORIAL = 5_000
MAX_DEGREE = 12
"""Largest degree of a polynomial that stands for a letter."""
_MAX_FACTORIAL_BALL = 10**9
_HALF, _TEN = fmpq(1, 2), fmpq(10)

Function = Callable[..., Value]


# Powers and roots


def power(place: Place, base: Value, exponent: Value) -> Value:
    if type(base) is acb_mat:
        return _matrix_power(base, exponent)
    if type(exponent) is fmpq:
        if exponent.q == 1:
            return _whole_power(place, base, exponent.p)
        if type(base) is fmpq and exponent in (_HALF, -_HALF) and (root := exact_root(base)) is not None:
            return root if exponent > 0 else 1 / root
    if base == 0:
        if (exponent if type(exponent) is not acb else exponent.real) > 0:
            return fmpq(0)
        raise NotNumber("0 to a power that is not positive")
    base = place.ball(base)
    if type(base) is arb and base > 0:
        return base**exponent
    place.has_left_reals = True
    return acb(base) ** exponent


def _whole_power(place: Place, base: Value, exponent: fmpz) -> Value:
    if base == 0 and exponent <= 0:
        raise NotNumber("0 to a power that is not positive")
    if type(base) is not fmpq:
        if type(base) in (arb_poly, acb_poly):
            if base.degree() * abs(exponent) > MAX_DEGREE:
                raise NotNumber("a polynomial of too high a degree")
            return base ** int(exponent)
        return base**exponent
    if base.q == 1 and abs(base.p) <= 1:
        return base if exponent % 2 else base * base
    bits = 2 * base.height_bits() * abs(exponent)
    if bits > MAX_BITS:
        return place.ball(base) ** exponent
    return place.checked(base**exponent)


def _matrix_power(base: acb_mat, exponent: Value) -> Value:
    if type(exponent) is not fmpq or exponent.q != 1 or abs(exponent.p) > 64:
        raise NotNumber("such a power of a matrix")
    times = int(exponent.p)
    return base**times if times >= 0 else base.inv() ** -times


def exact_root(value: fmpq) -> fmpq | None:
    """The square root of a fraction when it is a fraction."""
    if value < 0:
        return None
    top, bottom = int(value.p), int(value.q)
    roots = math.isqrt(top), math.isqrt(bottom)
    return fmpq(*roots) if roots[0] ** 2 == top and roots[1] ** 2 == bottom else None


def _root(place: Place, radicand: Value, degree: Value) -> Value:
    if type(degree) is fmpq and degree.q == 1 and degree.p % 2 == 1:
        # The real root of a negative number, as every schoolbook means it.
        real = place.ball(radicand)
        if type(real) is arb and real < 0:
            return -power(place, -real, 1 / degree)
    return power(place, radicand, 1 / degree)


# Functions of one argument


def _analytic(name: str) -> Function:
    real, complex_valued = getattr(arb, name), getattr(acb, name)

    def value(place: Place, argument: Value) -> Value:
        argument = place.ball(argument)
        if type(argument) is arb:
            found = real(argument)
            if found.is_finite():
                return found
            # Off its real domain, or without a value at all.
            place.has_left_reals = True
            argument = acb(argument)
        return complex_valued(argument)

    return value


def _inverted(function: Function) -> Function:
    """arcsec x = arccos 1/x, and the like."""
    return lambda place, argument: function(place, 1 / place.ball(argument))


_LN = _analytic("log")


def _ln(place: Place, argument: Value) -> Value:
    if argument == 0:
        raise NotNumber("the logarithm of 0")
    return _LN(place, argument)


def _absolute(place: Place, argument: Value) -> Value:
    if type(argument) is acb_mat:
        if argument.ncols() == 1:
            return sum((entry * entry for entry in argument.entries()), acb(0)).sqrt()
        return argument.det()
    return abs(argument)


def _rounded(name: str) -> Function:
    def value(place: Place, argument: Value) -> Value:
        found = getattr(place.ball(place.real(argument)), name)()
        whole = found.unique_fmpz()
        # A ball around a jump holds two integers: more digits decide, or nothing does.
        return found if whole is None else fmpq(whole)

    return value


def _extreme(name: str) -> Function:
    def value(place: Place, *arguments: Value) -> Value:
        return reduce(getattr(arb, name), [place.ball(place.real(argument)) for argument in arguments])

    return value


def _part(name: str) -> Function:
    return lambda place, argument: getattr(acb(place.ball(argument)), name)


# Counting


def _gamma(place: Place, argument: Value) -> Value:
    argument = place.ball(argument)
    if not abs(argument) < _MAX_FACTORIAL_BALL:
        raise OutOfBudget("a factorial out of every budget")
    return argument.gamma()


def _double_factorial(place: Place, argument: Value) -> Value:
    """2^(x/2) (pi/2)^((cos(pi x) - 1)/4) gamma(x/2 + 1), which is x!! at whole numbers."""
    argument, pi = place.ball(argument), arb.pi()
    turn = ((pi * argument).cos() - 1) / 4
    return arb(2) ** (argument / 2) * (pi / 2) ** turn * _gamma(place, argument / 2 + 1)


def _binomial(place: Place, top: Value, bottom: Value) -> Value:
    top, bottom = place.ball(top), place.ball(bottom)
    if not (abs(top) < _MAX_FACTORIAL_BALL and abs(bottom) < _MAX_FACTORIAL_BALL):
        raise OutOfBudget("a binomial out of every budget")
    return (top + 1).gamma() * (bottom + 1).rgamma() * (top - bottom + 1).rgamma()


def _exact_factorial(whole: int) -> fmpq | None:
    if whole < 0:
        raise NotNumber("the factorial of a negative number")
    return fmpq(fmpz.fac_ui(whole)) if whole <= MAX_FACTORIAL else None


def _exact_double_factorial(whole: int) -> fmpq | None:
    return fmpq(math.prod(range(whole, 0, -2))) if -1 <= whole <= MAX_FACTORIAL else None


def _exact_binomial(top: fmpq, bottom: fmpq) -> fmpq | None:
    r"""n(n-1)...(n-k+1) / k! of any n, by which \binom{-3}{2} is 6."""
    if bottom.q != 1 or abs(bottom) > MAX_FACTORIAL or abs(top) > 1 << 64:
        return None
    above, below = top, int(bottom.p)
    if above.q == 1 and above >= 0 and below > above / 2:
        below = int((above - below).p)
    if below < 0:
        return fmpq(0)
    if below > MAX_FACTORIAL:
        return None
    return math.prod((above - step for step in range(below)), start=fmpq(1)) / fmpz.fac_ui(below)


def _if_whole(function: Callable[..., fmpq | None]) -> Callable[..., fmpq | None]:
    """None for what is no integer, so that gamma takes it, or it has no value."""

    def value(*arguments: fmpq) -> fmpq | None:
        whole = [int(argument.p) for argument in arguments if argument.q == 1]
        return function(*whole) if len(whole) == len(arguments) else None

    return value


# Vectors and matrices


def _dot(place: Place, left: Value, right: Value) -> Value:
    if _is_vector(left) and _is_vector(right):
        return (left.transpose() * right)[0, 0]
    return left * right


def _cross(place: Place, left: Value, right: Value) -> Value:
    if not (_is_vector(left) and _is_vector(right)):
        return left * right
    (a, b, c), (d, e, f) = left.entries(), right.entries()
    return acb_mat([[b * f - c * e], [c * d - a * f], [a * e - b * d]])


def _is_vector(value: Value) -> bool:
    return type(value) is acb_mat and value.ncols() == 1


def _of_matrix(name: str) -> Function:
    def value(place: Place, argument: Value) -> Value:
        if type(argument) is not acb_mat:
            raise NotNumber(f"the {name} of a number")
        return getattr(argument, name)()

    return value


_ANALYTIC = {
    **{name: name for name in "sin cos tan cot sec csc asin acos atan sinh cosh tanh coth sech csch".split()},
    **{name: name for name in "asinh acosh atanh exp erf erfc erfi digamma zeta ei si ci li".split()},
    "ln": "log",
}
_FUNCTIONS = {name: _analytic(method) for name, method in _ANALYTIC.items()}

FUNCTIONS: dict[str, Function] = {
    **_FUNCTIONS,
    "acot": _inverted(_FUNCTIONS["atan"]),
    "asec": _inverted(_FUNCTIONS["acos"]),
    "acsc": _inverted(_FUNCTIONS["asin"]),
    "ln": _ln,
    "log": lambda place, argument, base=_TEN: _ln(place, argument) / _ln(place, base),
    "sqrt": lambda place, argument: power(place, argument, _HALF),
    "cbrt": lambda place, argument: _root(place, argument, fmpq(3)),
    "root": _root,
    "abs": _absolute,
    "factorial": lambda place, argument: _gamma(place, argument + 1),
    "double_factorial": _double_factorial,
    "binomial": _binomial,
    "floor": _rounded("floor"),
    "ceiling": _rounded("ceil"),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "real": _part("real"),
    "imaginary": _part("imag"),
    "argument": lambda place, argument: acb(place.ball(argument)).arg(),
    "conjugate": lambda place, argument: argument.conjugate() if type(argument) is acb else argument,
    "sign": lambda place, argument: place.ball(place.real(argument)).sgn(),
    "dot": _dot,
    "cross": _cross,
    "det": _of_matrix("det"),
    "trace": _of_matrix("trace"),
    # Sympy's names in lower case; no answer can write them.
    "gamma": _gamma,
    "polylog": lambda place, order, argument: acb(place.ball(argument)).polylog(place.ball(order)),
    "euler_gamma": lambda place: arb.const_euler(),
    "catalan": lambda place: arb.const_catalan(),
}

EXACT_FUNCTIONS: dict[str, Callable[..., fmpq | None]] = {
    "sqrt": exact_root,
    "factorial": _if_whole(_exact_factorial),
    "double_factorial": _if_whole(_exact_double_factorial),
    "binomial": _exact_binomial,
    "abs": abs,
    "floor": lambda argument: fmpq(argument.floor()),
    "ceiling": lambda argument: fmpq(argument.ceil()),
    "gcd": _if_whole(lambda *whole: fmpq(math.gcd(*whole))),
    "lcm": _if_whole(lambda *whole: fmpq(math.lcm(*whole))),
    "max": max,
    "min": min,
    "conjugate": lambda argument: argument,
    "real": lambda argument: argument,
    "sign": lambda argument: fmpq((argument > 0) - (argument < 0)),
}
