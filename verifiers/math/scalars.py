"""Whether two expressions are the same number, or the same function of their letters.

Numbers: exact fractions when both are rational, else 40 digits and as many more as the magnitudes inside call
for. Functions: equal at random rational points, drawn from a seed that the response cannot choose in advance;
a point outside the real domain of either side does not count. One rule rounds: an answer written as a decimal
(only digits, alone) with MIN_SIGNIFICANT digits or more stands for the exact number that rounds to it."""

import random
import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from verifiers.math.arithmetic import NotExact, NotNumber, exact_value, numeric_value, real_fraction
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
from verifiers.math.trees import constants, free_symbols, has_call, infinity_sign, walk

MIN_SIGNIFICANT = 6
MIN_SIGNIFICANT_TRUNCATED = 9
MAX_DIGITS = 3000
_DIGITS = 40
_GUARD_DIGITS = 12
MAX_SYMBOLS = 12
_WANTED_POINTS = 4
_MAX_POINTS = 10
_FAR_POINTS = 40
_IN_PIECES = ("floor", "ceiling", "max", "min", "abs", "sign")
_PROVABLE = (Number, Symbol, Constant, Sum, Product, Quotient, Power, FunctionCall)


def same_scalar(gold: Node, response: Node) -> bool:
    """Whether two expressions are equal; the gold's own decimal, or the response's, may be a rounding."""
    if gold == response:
        return True
    sign = infinity_sign(gold)
    if sign or infinity_sign(response):
        return sign == infinity_sign(response)
    symbols = free_symbols(gold) | free_symbols(response)
    if symbols or has_call(gold, known=False) or has_call(response, known=False):
        same = _same_function(gold, response, sorted(symbols))
        return _proven(gold, response) if same is None else same
    return same_number(gold, response)


def same_number(gold: Node, response: Node) -> bool:
    exact_gold, exact_response = exact_or_none(gold), exact_or_none(response)
    same: bool | str | None = exact_gold == exact_response
    if exact_gold is None or exact_response is None:
        same = _equal_at(gold, response, {})
    if same is True or _is_rounding(gold, response):
        return True
    return same is None and _proven(gold, response)


def _proven(gold: Node, response: Node) -> bool:
    """Whether sympy proves them equal; for what no number decides, out of the budgets or off the domain."""
    if not all(isinstance(item, _PROVABLE) for side in (gold, response) for item in walk(side)):
        return False
    if free_symbols(response) - free_symbols(gold) and exact_or_none(gold) is not None:
        # A letter too many: what no point decides is no spelling of a plain number.
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
    source = random_source(gold, response)
    complex_valued = "i" in constants(gold) | constants(response)
    same = _same_nearby(gold, response, symbols, source, complex_valued=complex_valued)
    if same and any(_is_in_pieces(item) for side in (gold, response) for item in walk(side)):
        return not _differ_far_away(gold, response, symbols, source, complex_valued=complex_valued)
    return same


def _is_in_pieces(item: object) -> bool:
    return isinstance(item, FunctionCall) and item.name in _IN_PIECES


def _differ_far_away(
    gold: Node, response: Node, symbols: list[str], source: random.Random, *, complex_valued: bool
) -> bool:
    r"""Whether functions in pieces, which may be the same on those near 0, differ on others: the floor of n/5
    is 0 up to 5."""
    for attempt in range(_FAR_POINTS):
        scale = 3 ** (attempt % 10)
        values = {name: scale * value for name, value in _point(source, symbols, attempt).items()}
        if _equal_at(gold, response, values, complex_valued=complex_valued) is False:
            return True
    return False


def _same_nearby(
    gold: Node, response: Node, symbols: list[str], source: random.Random, *, complex_valued: bool
) -> bool | None:
    """By points of 0.2 to 3.1; None when they decide nothing."""
    # The letters of an integral are lengths and rates, and it may converge for small ones only.
    has_integral = any(isinstance(item, Operation) for item in walk(gold))
    agreed = agreed_outside = 0
    for attempt in range(_MAX_POINTS):
        values = _point(source, symbols, attempt, other=Fraction(1, 4) if has_integral else Fraction(-1))
        verdict = _equal_at(gold, response, values, complex_valued=complex_valued)
        if verdict is False:
            return False
        if verdict is True:
            agreed += 1
        elif verdict == "outside":
            agreed_outside += 1
        if agreed >= _WANTED_POINTS or (not symbols and agreed):
            return True
    if agreed >= 2 or (agreed == 0 and agreed_outside >= _WANTED_POINTS):
        return True
    return None


def random_source(gold: Node, response: Node) -> random.Random:
    """Randomness that depends on both sides, so that no response can be made to fit the points."""
    try:
        text = f"{gold!r}|{response!r}"
    except ValueError:
        # Python does not print integers of more than 4300 digits.
        text = f"{hash(gold)}|{hash(response)}"
    return random.Random(zlib.crc32(text.encode()))


def _point(
    source: random.Random, symbols: list[str], attempt: int, *, other: Fraction = Fraction(-1)
) -> dict[str, Fraction]:
    """One point: positive, then sometimes `other`. Its prime denominator keeps it off every special value."""
    values = {}
    for name in symbols:
        value = Fraction(source.randint(20, 300), 97)
        values[name] = value * other if attempt % 2 and source.random() < 0.7 else value
    return values


def _equal_at(
    gold: Node, response: Node, values: Mapping[str, Fraction], *, complex_valued: bool = True
) -> bool | str | None:
    """True or False; "outside" when both agree off the real line; None when the point decides nothing."""
    try:
        return exact_value(gold, values) == exact_value(response, values)
    except NotExact:
        pass
    except NotNumber:
        return None
    digits = _DIGITS
    for _ in range(2):
        try:
            first, first_large, first_small = numeric_value(gold, values, digits=digits)
            second, second_large, second_small = numeric_value(response, values, digits=digits)
        except NotNumber:
            return None
        largest, smallest = max(first_large, second_large), min(first_small, second_small)
        difference = abs(first - second)
        tolerance_bits = largest - (digits - _GUARD_DIGITS) * 3.3219
        agree = not difference or float(_magnitude(difference)) <= tolerance_bits
        on_real_line = _is_real(first, tolerance_bits) and _is_real(second, tolerance_bits)
        if not agree:
            return False if on_real_line or complex_valued else None
        needed = int((largest - smallest) / 3.3219) + 2 * _GUARD_DIGITS
        if needed <= digits:
            return True if on_real_line or complex_valued else "outside"
        if needed > MAX_DIGITS:
            return None
        digits = needed + _DIGITS
    return True if on_real_line or complex_valued else "outside"


def _magnitude(value: Any) -> Any:
    return value.context.mag(value)


def _is_real(value: Any, tolerance_bits: float) -> bool:
    imaginary = getattr(value, "imag", 0)
    return not imaginary or float(_magnitude(abs(imaginary))) <= tolerance_bits
