r"""Where two functions are compared: near 0, at every magnitude, and on every piece.

Functions that are equal on a window may differ outside of it: \sqrt{(x-10)^2} is 10-x up to 10, \ln(e^{ix})/i
is x up to pi. So there are three kinds of points, all drawn from a source that the response cannot choose:
near ones of both signs; spread ones, of both signs and many magnitudes; and one in each gap between the
places where a side may turn into another function: the zeros of what stands under a root, in a logarithm or
in any other call, and the numbers that are written out. A rational function has no such places: it is the
same everywhere when it is on a window."""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from verifiers.math.arithmetic import (
    NotExact,
    NotNumber,
    exact_value,
    numeric_value,
    real_fraction,
    thread_context,
)
from verifiers.math.nodes import FunctionCall, Node, Number, Power, Product, Quotient, Sum, Symbol
from verifiers.math.roots import real_parts_of_roots, sign_changes
from verifiers.math.trees import children, difference, free_symbols, size, walk

Point = dict[str, Fraction]
"""A value for each letter."""

_PRIME = 97
"""The denominator of every point, which keeps it off special values."""
_DECADES = (-4, -2, 1, 2, 3, 4, 6, 9, 12)
_MAX_PIECES = 48
_MAX_WORK = 20_000
"""Nodes that are evaluated at the points on pieces, all together."""
_MAX_TURNING = 24
_MAX_SEARCHED = 6
_MAX_LETTERS = 4
_MAX_DEGREE = 12
_BESIDE = Fraction(1, 50)
_SAME_CUT = Fraction(1, 10**12)
_ONE = Number(Fraction(1))


def near_point(
    source: random.Random, symbols: list[str], attempt: int, *, other: Fraction = Fraction(-1)
) -> Point:
    """One point of 0.2 to 3.1: positive at even attempts, else in part multiplied by `other`."""
    values = {}
    for name in symbols:
        value = Fraction(source.randint(20, 300), _PRIME)
        values[name] = value * other if attempt % 2 and source.random() < 0.7 else value
    return values


def spread_points(source: random.Random, symbols: list[str]) -> Iterator[Point]:
    """Points of 10^-4 to 10^13. Each letter has each magnitude once with each sign, in an order of its own;
    several letters have them all positive, too, where functions of lengths are defined."""
    both = [(sign, decade) for sign in (1, -1) for decade in _DECADES]
    positive = [(1, decade) for decade in _DECADES] if len(symbols) > 1 else []
    for strata in (both, positive):
        orders = [source.sample(strata, len(strata)) for _ in symbols]
        for row in zip(*orders, strict=True):
            yield {
                name: sign * _of_decade(source, decade)
                for name, (sign, decade) in zip(symbols, row, strict=True)
            }


def _of_decade(source: random.Random, decade: int) -> Fraction:
    return Fraction(source.randint(10**4, 10**5), _PRIME) * Fraction(10) ** (decade - 2)


class Piece(NamedTuple):
    """Points in one gap between cuts, in the order in which to try them: one that decides is enough."""

    points: list[Point]
    must_decide: bool
    """Whether a side may turn into another function here."""


def pieces(source: random.Random, symbols: list[str], sides: tuple[Node, Node]) -> list[Piece]:
    """The gaps between the cuts, along one letter while the others stay: those beside a cut, then others."""
    turning = list(dict.fromkeys(item for side in sides for item in _turning(side)))
    if not turning:
        return []
    if len(turning) > _MAX_TURNING:
        turning = source.sample(turning, _MAX_TURNING)
    numbers = _numbers(sides)
    letters = symbols if len(symbols) <= _MAX_LETTERS else source.sample(symbols, _MAX_LETTERS)
    bases = [near_point(source, symbols, 0)]
    if len(symbols) > 1:
        bases.append(next(spread_points(source, symbols)))
    found = []
    for base in bases:
        for letter in letters:
            for values, must_decide in _between(source, numbers, _cuts(turning, letter, base)):
                found.append(Piece([{**base, letter: value} for value in values], must_decide))
    wanted = min(_MAX_PIECES, max(8, _MAX_WORK // (size(sides[0]) + size(sides[1]))))
    # Those beside a cut first: gaps between numbers alone, of each letter, would crowd them out.
    source.shuffle(found)
    return sorted(found, key=lambda piece: not piece.must_decide)[:wanted]


# Where a function may turn into another


def _turning(side: Node) -> Iterator[Node]:
    """The expressions in letters at whose zeros `side` may turn: arguments of calls and bases of powers that
    are no whole powers, and the sums inside them."""
    for item in walk(side):
        for part in _arguments(item):
            if free_symbols(part):
                yield part
                yield from (inner for inner in walk(part) if isinstance(inner, Sum) and free_symbols(inner))


def _arguments(item: object) -> Iterator[Node]:
    match item:
        case FunctionCall("max" | "min", arguments):
            yield from (difference(one, other) for one, other in combinations(arguments[:6], 2))
        case FunctionCall("floor" | "ceiling" | "asin" | "acos" | "acosh" | "atanh", (argument,)):
            yield argument
            yield difference(argument, _ONE)
            yield Sum((argument, _ONE))
        case FunctionCall(_, arguments):
            yield from arguments
        case Power(base, exponent) if not _is_whole(exponent):
            yield base
            yield exponent


def _is_whole(exponent: Node) -> bool:
    try:
        return exact_value(exponent).denominator == 1
    except (NotExact, NotNumber):
        return False


def _numbers(sides: tuple[Node, Node]) -> frozenset[Fraction]:
    """0 and the numbers that the sides are written with, of both signs."""
    found = {Fraction(0)}
    stack = list(sides)
    while stack:
        item = stack.pop()
        if free_symbols(item):
            stack.extend(children(item))
            continue
        try:
            value = real_fraction(item, digits=20)
        except NotNumber:
            continue
        found |= {value, -value}
    return frozenset(found)


def _cuts(turning: list[Node], letter: str, base: Point) -> set[Fraction]:
    """The values of the letter at which one of the expressions is 0, in its real or imaginary part."""
    others = {name: value for name, value in base.items() if name != letter}
    cuts: set[Fraction] = set()
    num_searched = 0
    for node in turning:
        if letter not in free_symbols(node):
            continue
        coefficients = _coefficients(node, letter, others)
        if coefficients is not None:
            cuts.update(real_parts_of_roots(thread_context(), coefficients))
        elif num_searched < _MAX_SEARCHED:
            num_searched += 1
            cuts.update(sign_changes(thread_context(), _along(node, letter, others)))
    return cuts


def _along(node: Node, letter: str, others: Point) -> Callable[[Fraction], Any]:
    def value_at(at: Fraction) -> Any:
        try:
            return numeric_value(node, {**others, letter: at}, digits=15).value
        except NotNumber:
            return None

    return value_at


def _coefficients(node: Node, letter: str, others: Point) -> list[Any] | None:
    """The coefficients of a polynomial in the letter, the lowest first; None for anything else."""
    if letter not in free_symbols(node):
        try:
            return [numeric_value(node, others, digits=30).value]
        except NotNumber:
            return None
    match node:
        case Symbol():
            return [0, 1]
        case Sum(parts) | Product(parts):
            lists = [_coefficients(part, letter, others) for part in parts]
            known = [one for one in lists if one is not None]
            if len(known) < len(lists):
                return None
            return _added(known) if isinstance(node, Sum) else _multiplied(known)
        case Quotient(top, bottom) if letter not in free_symbols(bottom):
            upper, lower = _coefficients(top, letter, others), _coefficients(bottom, letter, others)
            return [one / lower[0] for one in upper] if upper and lower and lower[0] else None
        case Power(base, Number(value)) if value.denominator == 1 and 0 < value <= _MAX_DEGREE:
            inner = _coefficients(base, letter, others)
            return None if inner is None else _multiplied([inner] * int(value))
    return None


def _added(lists: list[list[Any]]) -> list[Any]:
    total = [0] * max(map(len, lists))
    for coefficients in lists:
        for power, coefficient in enumerate(coefficients):
            total[power] += coefficient
    return total


def _multiplied(lists: list[list[Any]]) -> list[Any] | None:
    product: list[Any] = [1]
    for coefficients in lists:
        if len(product) + len(coefficients) > _MAX_DEGREE + 2:
            return None
        longer = [0] * (len(product) + len(coefficients) - 1)
        for power, one in enumerate(product):
            for other_power, other in enumerate(coefficients):
                longer[power + other_power] += one * other
        product = longer
    return product


def _between(
    source: random.Random, numbers: frozenset[Fraction], cuts: set[Fraction]
) -> Iterator[tuple[list[Fraction], bool]]:
    """Values in each gap, and near and far beyond each end, and whether the gap begins or ends with a cut.

    Those beside a cut come last, for functions that are too large to evaluate farther off."""
    places = sorted(numbers | cuts)
    for end, sign in ((places[0], -1), (places[-1], 1)):
        reach = max(abs(end), Fraction(1))
        for is_near, distance in enumerate((source.randint(100, 2000), source.randint(1, 13))):
            distances = [reach * Fraction(distance, 130), reach * Fraction(distance, 130) * _BESIDE]
            values = [_off_special(end + sign * distance, distance) for distance in distances]
            yield values, bool(is_near) and end in cuts
    for low, high in pairwise(places):
        width = high - low
        if width < abs(high) * _SAME_CUT:
            continue
        share = Fraction(source.randint(10, 90), 100)
        beside = share * _BESIDE
        places_in_gap = (low + width * share, low + width * beside, high - width * beside)
        values = [_off_special(value, width * beside) for value in places_in_gap]
        yield values, low in cuts or high in cuts


def _off_special(value: Fraction, width: Fraction) -> Fraction:
    """The value, moved by less than a thousandth of the width onto a power of ten times n over the prime."""
    step = Fraction(1, _PRIME)
    while step * 1000 > width:
        step /= 10
    while step * 10_000 <= width:
        step *= 10
    return round(value / step) * step
