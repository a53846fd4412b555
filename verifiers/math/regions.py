r"""Sets of reals as one sorted list: intervals, unions, inequalities in one unknown, R without points.

Everything that says "these reals" comes here (1 < x < 3, (1, 3), x > 1 and x < 3, \{x \mid ...\}), so that
its spelling does not matter. Only linear inequalities and |linear| are solved: anything else would be the
task, not its answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cmp_to_key

from verifiers.math.arithmetic import exact_or_none, exact_value, real_fraction
from verifiers.math.domains import complex_letters
from verifiers.math.nodes import (
    Bracket,
    FunctionCall,
    Listing,
    NamedSet,
    Node,
    Number,
    Percent,
    Piecewise,
    Power,
    Product,
    Quotient,
    Relation,
    SetBuilder,
    SetOf,
    SetOperation,
    Sum,
    Symbol,
    Text,
)
from verifiers.math.numbers import NotExact, NotNumber
from verifiers.math.points import random_prime
from verifiers.math.scalars import random_source, same_scalar
from verifiers.math.trees import MINUS_ONE, difference, free_symbols, infinity_sign, replaced, spelled, walk

MAX_PIECES = 40


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of an interval."""

    value: Node | None
    """None: infinite, in the direction of `sign`."""
    sign: int
    closed: bool
    size: Fraction
    """The value to 40 digits, for the order."""


@dataclass(frozen=True, slots=True)
class Interval:
    low: Endpoint
    high: Endpoint


_EVERYTHING = Interval(Endpoint(None, -1, False, Fraction(0)), Endpoint(None, 1, False, Fraction(0)))


@dataclass(frozen=True, slots=True)
class Region:
    variable: str | None
    intervals: tuple[Interval, ...]


class _NotRegion(Exception):
    pass


def to_region(node: Node) -> Region | None:
    """The set of reals that `node` describes, or None when it describes something else."""
    try:
        variable, intervals = _read(node)
        return Region(variable, _union(intervals))
    except (_NotRegion, NotNumber):
        return None


def same_region(gold: Region, response: Region) -> bool:
    if gold.variable is not None and response.variable is not None and gold.variable != response.variable:
        return False
    return len(gold.intervals) == len(response.intervals) and all(
        _same_end(one.low, other.low) and _same_end(one.high, other.high)
        for one, other in zip(gold.intervals, response.intervals, strict=True)
    )


def _same_end(one: Endpoint, other: Endpoint) -> bool:
    if one.value is None or other.value is None:
        return one.value is other.value and one.sign == other.sign
    return one.closed == other.closed and same_scalar(one.value, other.value)


_Read = tuple[str | None, list[Interval]]


def _read(node: Node) -> _Read:
    match node:
        case Bracket():
            return None, [_interval_of(node)]
        case NamedSet("R"):
            return None, [_EVERYTHING]
        case NamedSet("empty"):
            return None, []
        case SetOf(items):
            return None, list(map(_point, items))
        case SetOperation():
            return _operation(node)
        case SetBuilder(Symbol(name), condition):
            variable, intervals = _read(condition)
            if variable not in (None, name):
                raise _NotRegion
            return None, intervals
        case Relation():
            return _relation(node)
        case Listing():
            return _listing(node)
    raise _NotRegion


def _finite(value: Node, *, closed: bool) -> Endpoint:
    if free_symbols(value):
        raise _NotRegion
    return Endpoint(value, 0, closed, real_fraction(value, digits=40))


def _end(value: Node, *, closed: bool) -> Endpoint:
    sign = infinity_sign(value)
    return Endpoint(None, sign, False, Fraction(0)) if sign else _finite(value, closed=closed)


def _interval_of(node: Bracket) -> Interval:
    if len(node.items) != 2 or node.opening == "<":
        raise _NotRegion
    low = _end(node.items[0], closed=node.opening == "[")
    high = _end(node.items[1], closed=node.closing == "]")
    if _order(low, high) >= 0:
        raise _NotRegion
    return Interval(low, high)


def _point(value: Node) -> Interval:
    end = _finite(value, closed=True)
    return Interval(end, end)


def _order(one: Endpoint, other: Endpoint) -> int:
    """Which value is smaller; whether the ends are closed does not matter here."""
    if one.value is None or other.value is None:
        left = one.sign if one.value is None else 0
        right = other.sign if other.value is None else 0
        return (left > right) - (left < right)
    if one.value == other.value:
        return 0
    if abs(one.size - other.size) <= Fraction(1, 10**25) * max(Fraction(1), abs(one.size)):
        return 0
    return -1 if one.size < other.size else 1


# Functions in pieces


def same_piecewise(gold: Piecewise, response: Node, same: Callable[[Node, Node], bool]) -> bool:
    """Whether both have the same values: at each end of a piece, and in each gap between two ends."""
    try:
        (name, wanted), (other, given) = map(_pieces, (gold, response))
        if name is None or other not in (name, None):
            return False
        ends = sorted(
            (
                end
                for _, parts in wanted + given
                for part in parts
                for end in (part.low, part.high)
                if end.value
            ),
            key=cmp_to_key(_order),
        )
    except (_NotRegion, NotNumber):
        return False

    def agree(place: Interval, value: Node) -> bool:
        """Whether the pieces that hold at the place are the same with the value for the letter."""
        here = [
            [
                replaced(piece, Symbol(name), value)
                for piece, intervals in pieces
                if _intersection(intervals, [place])
            ]
            for pieces in (wanted, given)
        ]
        return bool(here[0]) is bool(here[1]) and all(same(one, two) for one in here[0] for two in here[1])

    for low, high in zip([_EVERYTHING.low, *ends], [*ends, _EVERYTHING.high], strict=True):
        gap = Interval(replace(low, closed=False), replace(high, closed=False))
        if _order(low, high) < 0 and not agree(gap, _stretched(low.value, high.value, name)):
            return False
    return all(agree(_point(end.value), end.value) for end in ends if end.value is not None)


_Pieces = list[tuple[Node, list[Interval]]]


def _pieces(node: Node) -> tuple[str | None, _Pieces]:
    """The letter of the conditions, and the values with the sets where they hold."""
    if not isinstance(node, Piecewise):
        return None, [(node, [_EVERYTHING])]
    names: set[str | None] = set()
    found: _Pieces = []
    for value, condition in node.pieces:
        if condition == Text("otherwise"):
            covered = [interval for _, intervals in found for interval in intervals]
            found.append((value, _complement(covered)))
            continue
        name, intervals = _read(condition)
        names.add(name)
        found.append((value, intervals))
    return _one_name(*names), found


def _stretched(low: Node | None, high: Node | None, name: str) -> Node:
    """An expression in the letter that runs through the numbers between two ends: low + x^2, high - x^2,
    (low + high x^2) / (1 + x^2)."""
    square = Power(Symbol(name), Number(Fraction(2)))
    if low is None or high is None:
        if low is None and high is None:
            return Symbol(name)
        return Sum((low, square)) if low is not None else difference(high, square)  # type: ignore[arg-type]
    return Quotient(Sum((low, Product((high, square)))), Sum((Number(Fraction(1)), square)))


# Set arithmetic


def _union(intervals: list[Interval]) -> tuple[Interval, ...]:
    if len(intervals) > MAX_PIECES:
        raise _NotRegion
    ordered = sorted(intervals, key=cmp_to_key(_by_low))
    merged: list[Interval] = []
    for interval in ordered:
        if not merged:
            merged.append(interval)
            continue
        last = merged[-1]
        meet = _order(interval.low, last.high)
        if meet < 0 or (meet == 0 and (interval.low.closed or last.high.closed)):
            merged[-1] = Interval(last.low, _further(last.high, interval.high))
        else:
            merged.append(interval)
    return tuple(merged)


def _by_low(one: Interval, other: Interval) -> int:
    order = _order(one.low, other.low)
    return order if order else int(other.low.closed) - int(one.low.closed)


def _further(one: Endpoint, other: Endpoint) -> Endpoint:
    order = _order(one, other)
    if order == 0:
        return one if one.closed else other
    return one if order > 0 else other


def _intersection(first: list[Interval], second: list[Interval]) -> list[Interval]:
    if len(first) * len(second) > MAX_PIECES**2:
        raise _NotRegion
    return [
        interval
        for one in first
        for other in second
        for interval in _between(_inner(one.low, other.low, 1), _inner(one.high, other.high, -1))
    ]


def _between(low: Endpoint, high: Endpoint) -> list[Interval]:
    """The interval with these ends; none where it would be empty."""
    order = _order(low, high)
    return [Interval(low, high)] if order < 0 or (order == 0 and low.closed and high.closed) else []


def _inner(one: Endpoint, other: Endpoint, direction: int) -> Endpoint:
    """The end that cuts more: the higher of two lows (1), the lower of two highs (-1)."""
    order = _order(one, other) * direction
    if order == 0:
        return other if one.closed else one
    return one if order > 0 else other


def _complement(intervals: list[Interval]) -> list[Interval]:
    low = _EVERYTHING.low
    found: list[Interval] = []
    for interval in _union(intervals):
        if interval.low.value is not None:
            found += _between(low, replace(interval.low, closed=not interval.low.closed))
        if interval.high.value is None:
            return found
        low = replace(interval.high, closed=not interval.high.closed)
    found.append(Interval(low, _EVERYTHING.high))
    return found


def _operation(node: SetOperation) -> _Read:
    left_name, left = _read(node.left)
    right_name, right = _read(node.right)
    name = _one_name(left_name, right_name)
    match node.operator:
        case "union":
            return name, [*left, *right]
        case "intersection":
            return name, _intersection(left, right)
    return name, _intersection(left, _complement(right))


def _one_name(*names: str | None) -> str | None:
    given = {name for name in names if name is not None}
    if len(given) > 1:
        raise _NotRegion
    return given.pop() if given else None


# Inequalities


def _relation(node: Relation) -> _Read:
    if complex_letters(node):
        raise _NotRegion
    node = _with_letters(node)
    match node:
        case Relation(("in",), (Symbol(name), members)):
            inner, intervals = _read(members)
            return _one_name(name, inner), intervals
    if not set(node.operators) <= {"<", ">", "<=", ">=", "!="}:
        raise _NotRegion
    letters = free_symbols(node)
    if len(letters) != 1:
        raise _NotRegion
    name = next(iter(letters))
    result = [_EVERYTHING]
    for left, operator, right in zip(node.sides, node.operators, node.sides[1:], strict=False):
        result = _intersection(result, _half(left, operator, right, name))
    return name, result


def _with_letters(node: Relation) -> Relation:
    """The relation with one letter for each named quantity: 0 < f(x) < 1 bounds f(x), 0 < AB < 1 a length."""
    calls = {item for item in walk(node) if isinstance(item, FunctionCall) and not item.known}
    for call in calls:
        node = Relation(node.operators, tuple(replaced(side, call, _letter(call)) for side in node.sides))
    return Relation(node.operators, tuple(map(_letter, node.sides)))


def _letter(node: Node) -> Node:
    name = spelled(node)
    return node if name is None else Symbol(name)


def _half(left: Node, operator: str, right: Node, name: str) -> list[Interval]:
    """The solutions of one inequality."""
    for side, other, turned in ((left, right, operator), (right, left, _TURNED[operator])):
        match side:
            case FunctionCall("abs", (inner, *_)) if not free_symbols(other):
                return _absolute(inner, turned, other, name)
    if infinity_sign(left) or infinity_sign(right):
        if operator not in ("<", ">", "<=", ">="):
            raise _NotRegion
        return [_EVERYTHING]
    slope, at_zero = _line(difference(left, right), name)
    if slope == 0:
        raise _NotRegion
    value = _solution(left, right, name, slope, at_zero)
    turned = operator if slope > 0 else _TURNED[operator]
    if turned == "!=":
        return _complement([_point(value)])
    end = _finite(value, closed="=" in turned)
    return [Interval(end, _EVERYTHING.high) if turned[0] == ">" else Interval(_EVERYTHING.low, end)]


_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


def _solution(left: Node, right: Node, name: str, slope: Fraction, at_zero: Fraction | None) -> Node:
    """Where both sides are equal. Keeps the writer's own expression when one side is the unknown alone."""
    if left == Symbol(name):
        return right
    if right == Symbol(name):
        return left
    if at_zero is not None:
        return Number(-at_zero / slope)
    intercept = replaced(difference(left, right), Symbol(name), Number(Fraction(0)))
    return Quotient(Product((MINUS_ONE, intercept)), Number(slope))


def _line(node: Node, name: str) -> tuple[Fraction, Fraction | None]:
    """(slope, value at 0 when rational) of a linear expression; raises _NotRegion for anything else."""
    if any(_may_bend(item, name) for item in walk(node)):
        raise _NotRegion
    # Where no response can know it: a polynomial may cross its line at any places that are fixed.
    place = Fraction(random_prime(random_source(node, node), 31), 97)
    try:
        start, end, there = (exact_value(node, {name: x}) for x in (Fraction(0), Fraction(1), place))
    except NotNumber:
        raise _NotRegion from None
    except NotExact:
        return _irrational_line(node, name), None
    slope = end - start
    if there != start + place * slope:
        raise _NotRegion
    return slope, start


def _may_bend(item: Node, name: str) -> bool:
    r"""Whether a part is no polynomial in the letter: as \sqrt{x^2}, it may be a line between some places."""
    part = item
    match item:
        case Symbol() | Sum() | Product() | Percent():
            return False
        case Power(_, exponent) if (power := exact_or_none(exponent)) is not None:
            if power >= 0 and power.denominator == 1:
                return False
        case Quotient(_, bottom):
            part = bottom
    return name in free_symbols(part)


def _irrational_line(node: Node, name: str) -> Fraction:
    """The slope of rational * x + irrational constant."""
    slope = Fraction(0)
    for term in node.terms if isinstance(node, Sum) else (node,):
        inner, factor = term, Fraction(1)
        while isinstance(inner, Product) and len(inner.factors) == 2 and isinstance(inner.factors[0], Number):
            factor *= inner.factors[0].value
            inner = inner.factors[1]
        if isinstance(inner, Sum):
            slope += factor * _irrational_line(inner, name)
        elif name in free_symbols(inner):
            if inner != Symbol(name):
                raise _NotRegion
            slope += factor
    return slope


def _absolute(inner: Node, operator: str, bound: Node, name: str) -> list[Interval]:
    """The solutions of |linear| < bound, or with another sign."""
    opposite = Product((MINUS_ONE, bound))
    if _finite(bound, closed=True).size < 0 or operator == "!=":
        raise _NotRegion
    below = _half(inner, operator.replace(">", "<"), bound, name)
    above = _half(inner, operator.replace("<", ">"), opposite, name)
    if operator[0] == "<":
        return _intersection(below, above)
    return [*_half(inner, operator, bound, name), *_half(inner, _TURNED[operator], opposite, name)]


def _listing(node: Listing) -> _Read:
    """x < 1 or x > 3: a union. x > 1 and x < 3: an intersection. A comma: an intersection unless empty."""
    if any(isinstance(item, Number) for item in node.items):
        raise _NotRegion
    has_relation = any(isinstance(item, Relation) for item in node.items)
    if not has_relation and node.joined_by not in ("and", "or"):
        raise _NotRegion
    parts = [_read(item) for item in node.items]
    name = _one_name(*(part[0] for part in parts))
    together = parts[0][1]
    for _, intervals in parts[1:]:
        together = _intersection(together, intervals)
    union = [interval for _, intervals in parts for interval in intervals]
    if not has_relation or node.joined_by == "or":
        return name, union
    return name, together if together or node.joined_by == "and" else union
