r"""Where two functions are compared: near 0, at every magnitude, on every piece, at jumps and integers.

Functions that are equal on a window may differ outside of it: \sqrt{(x-10)^2} is 10-x up to 10, \ln(e^{ix})/i
is x up to pi. So there are several kinds of points, all drawn from a source that the response cannot choose,
with a large random prime below them: near ones of both signs; spread ones, of both signs and many magnitudes;
one in each gap between the places where a side may turn into another function (the zeros of what stands under
a root, in a logarithm or in another call, and the numbers that are written out); and, where a side rounds,
the integers and both sides of its jumps. Each letter has values of its domain only."""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise
from operator import attrgetter
from typing import NamedTuple

from flint import acb, acb_mat, acb_poly, arb, arb_poly, fmpq, fmpq_poly, fmpz

from verifiers.math.arithmetic import compiled, exact_or_none, fraction, real_fraction, value_at
from verifiers.math.domains import JUMPING, Domain
from verifiers.math.nodes import FunctionCall, Modulo, Node, Number, Power, Quotient, Sum
from verifiers.math.numbers import MAX_DEGREE, NotExact, NotNumber, Place, Value
from verifiers.math.trees import children, constants, difference, free_symbols, size, walk

Point = dict[str, Value]
"""A value for each letter."""

_DECADES = (-4, -2, 1, 2, 3, 4, 6, 9, 12)
_MAX_PIECES = 48
_MAX_WORK = 20_000
"""Nodes that are evaluated at the points on pieces, all together."""
_MAX_TURNING = 24
_MAX_SEARCHED = 6
_MAX_LETTERS = 4
_NUM_SMALL_INTEGERS = 40
_OPPOSITE = fmpq(-1)
_BESIDE = fmpq(1, 50)
_SAME_CUT = fmpq(1, 10**12)
_ONE = Number(Fraction(1))
_SIDE = 3
"""Rows of random vectors and matrices."""


class Drawing:
    """Draws points for one pair of expressions."""

    def __init__(self, source: random.Random, domains: dict[str, Domain]) -> None:
        self.source = source
        self.domains = domains
        self.letters = sorted(domains)
        self.prime = random_prime(source, 31)

    def of_kind(self, *kinds: Domain) -> list[str]:
        return [name for name in self.letters if self.domains[name] in kinds]

    # Near

    def near(self, attempt: int, *, other: fmpq = _OPPOSITE) -> Point:
        """One point of 0.2 to 3.1: positive at even attempts, else in part multiplied by `other`."""
        values: Point = {}
        for name in self.letters:
            match self.domains[name]:
                case Domain.NATURAL:
                    values[name] = fmpq(self.source.randint(0, 12))
                    continue
                case Domain.INTEGER:
                    value: Value = fmpq(self.source.randint(0, 12))
                case Domain.COMPLEX:
                    values[name] = acb(self._dyadic(), self._dyadic() * self.source.choice((1, -1)))
                    continue
                case Domain.VECTOR | Domain.MATRIX as kind:
                    columns = 1 if kind is Domain.VECTOR else _SIDE
                    rows = [[self._dyadic() for _ in range(columns)] for _ in range(_SIDE)]
                    values[name] = acb_mat(rows)
                    continue
                case _:
                    value = self._number()
            values[name] = value * other if attempt % 2 and self.source.random() < 0.7 else value
        return values

    def _number(self) -> fmpq:
        return fmpq(self.source.randint(self.prime // 5, 3 * self.prime), self.prime)

    def _dyadic(self) -> arb:
        """The like of `_number` as an exact ball."""
        return arb((self.source.randint(self.prime // 5, 3 * self.prime), 1 - self.prime.bit_length()))

    # Far

    def spread(self) -> Iterator[Point]:
        """Points of 10^-4 to 10^13. Each letter has each magnitude once with each sign, in an order of its
        own; several letters have them all positive, too, where functions of lengths are defined."""
        both = [(sign, decade) for sign in (1, -1) for decade in _DECADES]
        positive = [(1, decade) for decade in _DECADES] if len(self.letters) > 1 else []
        for strata in (both, positive):
            orders = [self.source.sample(strata, len(strata)) for _ in self.letters]
            for row in zip(*orders, strict=True):
                yield {
                    name: self._of_decade(name, *stratum)
                    for name, stratum in zip(self.letters, row, strict=True)
                }

    def _of_decade(self, name: str, sign: int, decade: int) -> Value:
        share = fmpq(self.source.randint(self.prime, 10 * self.prime), self.prime)
        value = sign * share * fmpq(10) ** decade
        match self.domains[name]:
            case Domain.INTEGER | Domain.NATURAL as kind:
                return fmpq(abs(value).floor() if kind is Domain.NATURAL else value.floor())
            case Domain.COMPLEX:
                return acb(arb((int(value.floor()), 0)), self._dyadic())
        return value

    # Integers and jumps

    def integers(self, sides: tuple[Node, Node]) -> Iterator[Point]:
        """Points at which the integers among the letters are small, have common factors, or lie at a jump of
        a side; and, where a side rounds, real letters are integers and lie at its jumps."""
        whole = self.of_kind(Domain.INTEGER, Domain.NATURAL)
        found = [_argument_of_jump(item) for side in sides for item in walk(side)]
        jumps = [argument for argument in found if argument is not None]
        names = whole + (self.of_kind(Domain.REAL) if jumps else [])
        if not names:
            return
        if len(names) == 1:
            for number in range(0 if self.domains[names[0]] is Domain.NATURAL else -12, 13):
                yield self.near(0) | {names[0]: fmpq(number)}
        else:
            for _ in range(_NUM_SMALL_INTEGERS):
                factor = self.source.choice((1, 1, 2, 3, 4, 6, 12))
                yield self.near(0) | {
                    name: fmpq(
                        factor * self.source.randint(-5 * (self.domains[name] is not Domain.NATURAL), 9)
                    )
                    for name in names
                }
        for argument in dict.fromkeys(jumps):
            for name in set(names) & free_symbols(argument):
                yield from self._at_jumps(argument, name, names)

    def _at_jumps(self, argument: Node, name: str, names: list[str]) -> Iterator[Point]:
        """Where the argument, a line in the letter, is an integer, and on both sides of it."""
        base = self.near(0) | {other: fmpq(self.source.randint(-9, 9)) for other in names}
        evaluate = compiled(argument)
        try:
            values = [value_at(evaluate, Place(base | {name: fmpq(at)}, is_exact=True)) for at in (0, 1, 2)]
        except (NotExact, NotNumber):
            return
        start, slope = values[0], values[1] - values[0]
        if slope == 0 or values[2] != start + 2 * slope:
            return
        for number in (0, 1, -1, self.source.randint(2, 99), -self.source.randint(2, 10**6)):
            at = (number - start) / slope
            if self.domains[name] is not Domain.REAL:
                places = {at.floor() - 1, at.floor(), at.ceil(), at.ceil() + 1}
            else:
                places = {at, at + abs(1 / slope) / 1000, at - abs(1 / slope) / 1000}
            for place in sorted(places):
                yield base | {name: fmpq(place)}

    # Pieces

    def pieces(self, sides: tuple[Node, Node]) -> "list[Piece]":
        """The gaps between the cuts, along one letter while the others stay: those beside a cut, then
        others."""
        letters = self.of_kind(Domain.REAL)
        is_complex = "i" in constants(sides[0]) | constants(sides[1])
        turning = list(dict.fromkeys(item for side in sides for item in _turning(side, is_complex)))
        if not turning or not letters:
            return []
        if len(turning) > _MAX_TURNING:
            turning = self.source.sample(turning, _MAX_TURNING)
        numbers = _numbers(sides)
        if len(letters) > _MAX_LETTERS:
            letters = self.source.sample(letters, _MAX_LETTERS)
        bases = [self.near(0)]
        if len(self.letters) > 1:
            bases.append(next(self.spread()))
        found = []
        for base in bases:
            for letter in letters:
                for values, must_decide in self._between(numbers, _cuts(turning, letter, base)):
                    found.append(Piece([{**base, letter: value} for value in values], must_decide))
        wanted = min(_MAX_PIECES, max(8, _MAX_WORK // (size(sides[0]) + size(sides[1]))))
        # Those beside a cut first: gaps between numbers alone, of each letter, would crowd them out.
        self.source.shuffle(found)
        return sorted(found, key=lambda piece: not piece.must_decide)[:wanted]

    def _between(self, numbers: set[fmpq], cuts: set[fmpq]) -> Iterator[tuple[list[fmpq], bool]]:
        """Values in each gap, and near and far beyond each end, and whether the gap begins or ends with a
        cut.

        Those beside a cut come last, for functions that are too large to evaluate farther off."""
        places = sorted(numbers | cuts)
        for end, sign in ((places[0], -1), (places[-1], 1)):
            reach = max(abs(end), fmpq(1))
            for is_near, distance in enumerate((self.source.randint(100, 2000), self.source.randint(1, 13))):
                distances = [reach * distance / 130, reach * distance / 130 * _BESIDE]
                yield [end + sign * far * self._blur() for far in distances], bool(is_near) and end in cuts
        for low, high in pairwise(places):
            width = high - low
            if width < abs(high) * _SAME_CUT:
                continue
            share = fmpq(self.source.randint(self.prime // 10, self.prime * 9 // 10), self.prime)
            beside = share * _BESIDE
            yield (
                [low + width * share, low + width * beside, high - width * beside],
                low in cuts or high in cuts,
            )

    def _blur(self) -> fmpq:
        """A number near 1, off all special values."""
        return 1 + fmpq(self.source.randint(1, self.prime), 1000 * self.prime)


class Piece(NamedTuple):
    """Points in one gap between cuts, in the order in which to try them: one that decides is enough."""

    points: list[Point]
    must_decide: bool
    """Whether a side may turn into another function here."""


def random_prime(source: random.Random, bits: int) -> int:
    while True:
        number = source.getrandbits(bits) | 1 << (bits - 1) | 1
        if fmpz(number).is_prime():
            return number


def _argument_of_jump(item: object) -> Node | None:
    match item:
        case Modulo(value, modulus):
            return Quotient(value, modulus)
        case FunctionCall(name, (argument, *_), known=True) if name in JUMPING:
            return argument
    return None


# Where a function may turn into another


def _turning(side: Node, is_complex: bool) -> Iterator[Node]:
    """The expressions in letters at whose zeros `side` may turn: arguments of calls and bases of powers that
    are no whole powers, and the sums inside them."""
    for item in walk(side):
        for part in _arguments(item, is_complex):
            if free_symbols(part):
                yield part
                yield from (inner for inner in walk(part) if isinstance(inner, Sum) and free_symbols(inner))


def _arguments(item: object, is_complex: bool) -> Iterator[Node]:
    match item:
        case FunctionCall("max" | "min", arguments):
            yield from (difference(one, other) for one, other in combinations(arguments[:6], 2))
        case FunctionCall("floor" | "ceiling" | "asin" | "acos" | "acosh" | "atanh", (argument,)):
            yield argument
            yield difference(argument, _ONE)
            yield Sum((argument, _ONE))
        case FunctionCall("sin" | "cos") if not is_complex:
            # No wave of a real argument can be flat on a window.
            return
        case FunctionCall(_, arguments):
            yield from arguments
        case Power(base, exponent) if (power := exact_or_none(exponent)) is None or power.denominator != 1:
            yield base
            yield exponent


def _numbers(sides: tuple[Node, Node]) -> set[fmpq]:
    """0 and the numbers that the sides are written with, of both signs."""
    found = {fmpq(0)}
    stack = list(sides)
    while stack:
        item = stack.pop()
        if free_symbols(item):
            stack.extend(children(item))
            continue
        try:
            value = fraction(real_fraction(item, digits=20))
        except NotNumber:
            continue
        found |= {value, -value}
    return found


def _cuts(turning: list[Node], letter: str, base: Point) -> set[fmpq]:
    """The values of the letter at which one of the expressions is 0, in its real or imaginary part."""
    cuts: set[fmpq] = set()
    num_searched = 0
    for node in turning:
        if letter not in free_symbols(node):
            continue
        evaluate = compiled(node)
        polynomial = _polynomial(evaluate, base | {letter: arb_poly([0, 1])})
        if polynomial is not None:
            cuts.update(_real_parts_of_roots(polynomial))
        elif num_searched < _MAX_SEARCHED:
            num_searched += 1
            cuts.update(_sign_changes(_along(evaluate, letter, base)))
    return cuts


def _along(evaluate: Callable[[Place], Value], letter: str, base: Point) -> Callable[[fmpq], Value | None]:
    def value_along(at: fmpq) -> Value | None:
        try:
            return value_at(evaluate, Place(base | {letter: at}))
        except NotNumber:
            return None

    return value_along


def _polynomial(evaluate: Callable[[Place], Value], values: Point) -> Value | None:
    """The node as a polynomial in the letter whose value is the polynomial x; None for anything else."""
    try:
        found = evaluate(Place(values))
    except (NotNumber, ArithmeticError, ValueError, TypeError, AttributeError):
        return None
    is_polynomial = isinstance(found, (arb_poly, acb_poly)) and found.degree() <= MAX_DEGREE
    return found if is_polynomial else None


# The zeros of a function of one real letter, to a few digits: they say where to look, and prove nothing

_GRID = tuple(
    sorted(sign * fmpq(3 * 10 ** (decade + 3), 1000) for sign in (1, -1) for decade in range(-3, 13))
    + [fmpq(0)]
)
_NUM_HALVINGS = 30


def _real_parts_of_roots(polynomial: Value) -> list[fmpq]:
    """The real parts of the roots of a polynomial with coefficients that are balls; of complex ones, those of
    the real and of the imaginary part."""
    coefficients = polynomial.coeffs()
    parts = [[one.real for one in coefficients], [one.imag for one in coefficients]]
    return [
        root
        for part in (parts if isinstance(polynomial, acb_poly) else [coefficients])
        for root in _roots(part)
    ]


def _roots(coefficients: list[arb]) -> list[fmpq]:
    rounded = [fmpq(0) if one.contains(0) else one.mid().fmpq() for one in coefficients]
    while rounded and rounded[-1] == 0:
        rounded.pop()
    if len(rounded) < 2:
        return []
    if len(rounded) == 2:
        return [-rounded[0] / rounded[1]]
    # Exact coefficients, so that a double root is one.
    return [fmpq(acb(root).real.mid().fmpq()) for root, _ in fmpq_poly(rounded).complex_roots()]


def _sign_changes(value_at: Callable[[fmpq], Value | None]) -> list[fmpq]:
    """Where the real or the imaginary part of a function changes its sign, as far as a grid of magnitudes
    shows it. `value_at` gives None where there is no value."""
    values = [(at, value_at(at)) for at in _GRID]
    known = [(at, acb(value)) for at, value in values if value is not None]
    found: list[fmpq] = []
    for part in (attrgetter("real"), attrgetter("imag")):
        for (low, at_low), (high, at_high) in pairwise(known):
            if part(at_low) * part(at_high) < 0:
                found.append(_halved(value_at, part, low, high, part(at_low)))
    return found


def _halved(
    value_at: Callable[[fmpq], Value | None],
    part: Callable[[acb], arb],
    low: fmpq,
    high: fmpq,
    sign: arb,
) -> fmpq:
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        value = value_at(middle)
        if value is None:
            break
        low, high = (middle, high) if part(acb(value)) * sign > 0 else (low, middle)
    return (low + high) / 2
