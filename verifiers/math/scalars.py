"""Whether two expressions are the same number, or the same function of their letters.

Numbers: exact fractions when both are rational, else 40 digits and as many more as the magnitudes inside call
for. Functions: equal at random rational points near and far (`verifiers.math.points`), drawn from a seed that
the response cannot choose in advance; a point outside the real domain of either side does not count. One rule
rounds: an answer written as a decimal (only digits, alone) with MIN_SIGNIFICANT digits or more stands for the
exact number that rounds to it."""

import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum, auto
from fractions import Fraction
from functools import partial
from typing import Any

from verifiers.math.arithmetic import (
    Evaluation,
    NotExact,
    NotNumber,
    OutOfBudget,
    Undecided,
    exact_value,
    numeric_value,
    real_fraction,
)
from verifiers.math.costs import require_affordable
from verifiers.math.nodes import (
    Constant,
    FunctionCall,
    Node,
    Number,
    Operation,
    Power,
    Product,
    Quotient,
    Sum,
    Symbol,
)
from verifiers.math.points import Piece, near_point, pieces, spread_points
from verifiers.math.trees import constants, free_symbols, has_call, infinity_sign, walk

MIN_SIGNIFICANT = 6
MIN_SIGNIFICANT_TRUNCATED = 9
MAX_DIGITS = 3000
_DIGITS = 40
_BITS_PER_DIGIT = 3.3219
_GUARD_DIGITS = 12
MAX_SYMBOLS = 12
_WANTED_POINTS = 4
_MAX_POINTS = 10
_MAX_FAR_DIGITS = 500
_PROVABLE = (Number, Symbol, Constant, Sum, Product, Quotient, Power, FunctionCall)


class _At(Enum):
    """The verdict of one point on two expressions."""

    SAME = auto()
    SAME_OUTSIDE = auto()
    """Both have the same value, outside the real domain of either."""
    DIFFERENT = auto()
    NOTHING = auto()
    """A side has no value, or they differ outside of the real domain."""
    HIDDEN = auto()
    """A side, or the difference between them, is out of the budgets."""


def same_scalar(gold: Node, response: Node) -> bool:
    """Whether two expressions are equal; the gold's own decimal, or the response's, may be a rounding."""
    if gold == response:
        return True
    sign = infinity_sign(gold)
    if sign or infinity_sign(response):
        return sign == infinity_sign(response)
    symbols = free_symbols(gold)
    if not free_symbols(response) <= symbols:
        # x + \sqrt{(x-10)^2} is no spelling of 10, and no points can make it one.
        return False
    if symbols or has_call(gold, known=False) or has_call(response, known=False):
        same = _same_function(gold, response, sorted(symbols))
        return _proven(gold, response) if same is None else same
    return same_number(gold, response)


def same_number(gold: Node, response: Node) -> bool:
    exact_gold, exact_response = exact_or_none(gold), exact_or_none(response)
    found = _At.SAME if exact_gold == exact_response else _At.DIFFERENT
    if exact_gold is None or exact_response is None:
        found = _compared_at(gold, response, {})
    if found is _At.SAME or _is_rounding(gold, response):
        return True
    return found is not _At.DIFFERENT and _proven(gold, response)


def _proven(gold: Node, response: Node) -> bool:
    """Whether sympy proves them equal; for what no number decides, out of the budgets or off the domain."""
    if not all(isinstance(item, _PROVABLE) for side in (gold, response) for item in walk(side)):
        return False
    try:
        require_affordable(gold, response)
    except Undecided:
        return False
    # After everything cheap, and in a worker: importing sympy takes as long as a thousand comparisons.
    from verifiers.math import algebra

    return algebra.proves_equal(gold, response)


def exact_or_none(node: Node) -> Fraction | None:
    try:
        return exact_value(node)
    except (NotExact, NotNumber):
        return None


def _is_rounding(gold: Node, response: Node) -> bool:
    """Whether one side is a decimal literal that the other, exact, rounds to."""
    gold_decimal, response_decimal = _decimal(gold), _decimal(response)
    if gold_decimal and response_decimal:
        # Two decimals: the shorter must be the rounding of the longer, and long enough to mean it.
        short, long = sorted((gold_decimal, response_decimal), key=lambda number: number.significant)
        return short.significant >= MIN_SIGNIFICANT + 2 and rounds_to(long, short)
    if response_decimal:
        return rounds_to(gold, response_decimal)
    if gold_decimal:
        return rounds_to(response, gold_decimal)
    return False


def _decimal(node: Node) -> Number | None:
    if isinstance(node, Number) and node.places:
        return node
    return None


def rounds_to(exact: Node, decimal: Number, *, least: int | None = None) -> bool:
    """Whether `decimal` is `exact` rounded to its places (or cut off, when it is long or ends in dots)."""
    assert decimal.places is not None
    if decimal.significant < (3 if decimal.open_ended else MIN_SIGNIFICANT if least is None else least):
        return False
    unit = Fraction(1, 10**decimal.places)
    try:
        error = abs(real_fraction(exact) - decimal.value)
        cut = error < unit and abs(decimal.value) <= abs(real_fraction(exact))
    except NotNumber:
        return False
    may_cut = decimal.open_ended or decimal.significant >= MIN_SIGNIFICANT_TRUNCATED
    return error <= unit / 2 or (may_cut and cut)


def _same_function(gold: Node, response: Node, symbols: list[str]) -> bool | None:
    """None when the points decide nothing."""
    if len(symbols) > MAX_SYMBOLS:
        return None
    sides = (gold, response)
    compared_at = partial(
        _compared_at, gold, response, complex_valued="i" in constants(gold) | constants(response)
    )
    source = random_source(gold, response)
    # The letters of an integral are lengths and rates, and it may converge for small ones only.
    has_integral = any(isinstance(item, Operation) for side in sides for item in walk(side))
    found = _nearby(compared_at, source, symbols, other=Fraction(1, 4) if has_integral else Fraction(-1))
    if not symbols:
        return {_At.SAME: True, _At.DIFFERENT: False}.get(next(iter(found)))
    if not has_integral and not found[_At.DIFFERENT]:
        found += _far_away(compared_at, source, symbols, sides)
    if found[_At.DIFFERENT]:
        return False
    if found[_At.HIDDEN]:
        return None
    agreed_outside = found[_At.SAME] == 0 and found[_At.SAME_OUTSIDE] >= _WANTED_POINTS
    return True if found[_At.SAME] >= 2 or agreed_outside else None


def _nearby(
    compared_at: Callable[..., _At], source: random.Random, symbols: list[str], *, other: Fraction
) -> Counter[_At]:
    """By points of 0.2 to 3.1, up to a difference or until enough of them agree."""
    found = Counter[_At]()
    for attempt in range(_MAX_POINTS):
        found[compared_at(near_point(source, symbols, attempt, other=other))] += 1
        if found[_At.DIFFERENT] or not symbols or found[_At.SAME] >= _WANTED_POINTS:
            break
    return found


def _far_away(
    compared_at: Callable[..., _At], source: random.Random, symbols: list[str], sides: tuple[Node, Node]
) -> Counter[_At]:
    """By points of every magnitude and on every piece, up to a difference.

    HIDDEN stands for a piece without a point that is within the budgets: a tower of powers, times 0, must not
    hide what the rest of a response does there."""
    found = Counter[_At]()
    for values in spread_points(source, symbols):
        found[compared_at(values, max_digits=_MAX_FAR_DIGITS)] += 1
        if found[_At.DIFFERENT]:
            return found
    del found[_At.HIDDEN]
    for piece in pieces(source, symbols, sides):
        here = _on_piece(compared_at, piece)
        found[here] += 1
        if here is _At.DIFFERENT:
            break
    return found


def _on_piece(compared_at: Callable[..., _At], piece: Piece) -> _At:
    """The verdict of the first of its points that decides."""
    hidden = False
    for num_tried, values in enumerate(piece.points):
        here = compared_at(values, max_digits=MAX_DIGITS if num_tried else _MAX_FAR_DIGITS)
        if here in (_At.SAME, _At.SAME_OUTSIDE, _At.DIFFERENT):
            return here
        hidden = hidden or here is _At.HIDDEN
    return _At.HIDDEN if hidden and piece.must_decide else _At.NOTHING


def random_source(gold: Node, response: Node) -> random.Random:
    """Randomness that depends on both sides, so that no response can be made to fit the points."""
    try:
        text = f"{gold!r}|{response!r}"
    except ValueError:
        # Python does not print integers of more than 4300 digits.
        text = f"{hash(gold)}|{hash(response)}"
    return random.Random(zlib.crc32(text.encode()))


def _compared_at(
    gold: Node,
    response: Node,
    values: Mapping[str, Fraction],
    *,
    complex_valued: bool = True,
    max_digits: int = MAX_DIGITS,
) -> _At:
    """`complex_valued`: points outside the real domain count, too."""
    try:
        return _At.SAME if exact_value(gold, values) == exact_value(response, values) else _At.DIFFERENT
    except NotExact:
        pass
    except NotNumber:
        return _At.NOTHING
    all_positive = all(value > 0 for value in values.values())
    digits = _DIGITS
    for _ in range(2):
        try:
            first = numeric_value(gold, values, digits=digits)
        except NotNumber as error:
            return _At.HIDDEN if isinstance(error, OutOfBudget) else _At.NOTHING
        gold_counts = complex_valued or _is_in_domain(first, digits, all_positive)
        try:
            second = numeric_value(response, values, digits=digits)
        except NotNumber as error:
            return _At.HIDDEN if gold_counts and isinstance(error, OutOfBudget) else _At.NOTHING
        counts = gold_counts and (complex_valued or _is_in_domain(second, digits, all_positive))
        difference = abs(first.value - second.value)
        tolerance_bits = max(_tolerance_bits(first, digits), _tolerance_bits(second, digits))
        if difference and float(_magnitude(difference)) > tolerance_bits:
            return _At.DIFFERENT if counts else _At.NOTHING
        needed = _digits_for((first, second))
        if needed <= digits:
            break
        if needed > max_digits:
            return _At.HIDDEN if counts else _At.NOTHING
        digits = needed + _DIGITS
    return _At.SAME if counts else _At.SAME_OUTSIDE


def _is_in_domain(found: Evaluation, digits: int, all_positive: bool) -> bool:
    r"""Whether a value is real, and for negative letters each part of it, too: \sqrt{a}\sqrt{b} is no real
    function of negative ones."""
    imaginary = getattr(found.value, "imag", 0)
    is_real = not imaginary or float(_magnitude(abs(imaginary))) <= _tolerance_bits(found, digits)
    return is_real and (all_positive or found.stayed_real)


def _tolerance_bits(found: Evaluation, digits: int) -> float:
    return found.largest + found.lost_bits - (digits - _GUARD_DIGITS) * _BITS_PER_DIGIT


def _digits_for(sides: tuple[Evaluation, Evaluation]) -> int:
    """The digits in which the smallest part still shows beside the largest."""
    range_bits = max(side.largest for side in sides) - min(side.smallest for side in sides)
    lost_bits = max(side.lost_bits for side in sides)
    return int((range_bits + lost_bits) / _BITS_PER_DIGIT) + 2 * _GUARD_DIGITS


def _magnitude(value: Any) -> Any:
    return value.context.mag(value)
