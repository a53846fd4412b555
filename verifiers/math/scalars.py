"""Whether two expressions are the same number, or the same function of their letters.

A difference needs an enclosure: the values are balls, and they are refined until 0 is excluded from their
difference or they agree to more digits than the sides could hide. What is rational is exact: numbers as
fractions, functions of letters modulo a random prime at a random point, which no two different ones survive.
Other functions are equal at random points of the domains of their letters (`verifiers.math.domains`,
`verifiers.math.points`), drawn from a seed that the response cannot choose in advance; a point outside the
real domain of either side does not count. One rule rounds: an answer written as a decimal (only digits,
alone) with MIN_SIGNIFICANT digits or more stands for the exact number that rounds to it."""

import random
import zlib
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from fractions import Fraction

from flint import acb, acb_mat, arb, fmpq, nmod

from verifiers.math.arithmetic import (
    Undecided,
    accuracy,
    compiled,
    precision,
    real_fraction,
    residue,
    value_at,
)
from verifiers.math.costs import require_affordable
from verifiers.math.domains import Domain, domains
from verifiers.math.nodes import (
    Constant,
    FunctionCall,
    Node,
    Number,
    Operation,
    Percent,
    Power,
    Product,
    Quotient,
    Sum,
    Symbol,
)
from verifiers.math.numbers import NotExact, NotNumber, OutOfBudget, Place, Value, magnitude
from verifiers.math.points import Drawing, Piece, Point, random_prime
from verifiers.math.trees import constants, free_symbols, has_call, infinity_sign, walk

MIN_SIGNIFICANT = 6
MIN_SIGNIFICANT_TRUNCATED = 9
MAX_SYMBOLS = 12
_BITS = 128
_AGREEMENT = 60
"""Bits in which sides must agree at a point."""
_FULL_AGREEMENT = 3_300
"""The same at one point, and for numbers: a thousand digits; more for sides that are written with more."""
_AGREEMENT_OF_INTEGRALS = 280
_MAX_POINT_BITS = 2_048
_MAX_BITS = 60_000
_WANTED_POINTS = 4
_MAX_POINTS = 10
_PROVABLE = (Number, Symbol, Constant, Sum, Product, Quotient, Power, FunctionCall)
_RATIONAL = frozenset((Number, Symbol, Sum, Product, Quotient, Power, Percent))
_UNREAL = (Domain.COMPLEX, Domain.VECTOR, Domain.MATRIX)


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


def same_scalar(gold: Node, response: Node, *, integers: frozenset[str] = frozenset()) -> bool:
    """Whether two expressions are equal; the gold's own decimal, or the response's, may be a rounding.

    `integers`: letters that are said to be integers."""
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
        domain_of = domains(gold, response, integers)
        same = _same_function(gold, response, domain_of)
        # Sympy takes each letter for a real number.
        return (
            _proven(gold, response)
            if same is None and set(domain_of.values()).isdisjoint(_UNREAL)
            else bool(same)
        )
    return same_number(gold, response)


def same_number(gold: Node, response: Node) -> bool:
    pair = _Pair(gold, response, complex_valued=True)
    if (same := pair.same_exactly()) is not None:
        return same or _is_rounding(gold, response)
    if (same := _same_rational(gold, response, ())) is not None:
        return same
    found = pair.at({}, _full_agreement(gold, response), _MAX_BITS)
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
        value = real_fraction(exact)
    except NotNumber:
        return False
    error = abs(value - decimal.value)
    may_cut = decimal.open_ended or decimal.significant >= MIN_SIGNIFICANT_TRUNCATED
    return error <= unit / 2 or (may_cut and error < unit and abs(decimal.value) <= abs(value))


def _same_rational(gold: Node, response: Node, letters: Iterable[str]) -> bool | None:
    """Whether two rational functions are one: at a random point modulo a random prime of 62 bits. None of
    anything else, and where they have no value."""
    if not (_is_rational(gold) and _is_rational(response)):
        return None
    source = random_source(gold, response)
    prime = random_prime(source, 62)
    values = {name: nmod(source.getrandbits(61), prime) for name in letters}
    try:
        return bool(residue(gold, values, prime) == residue(response, values, prime))
    except (NotExact, NotNumber):
        return None


def _is_rational(node: Node) -> bool:
    return all(type(item) in _RATIONAL for item in walk(node))


def _full_agreement(*sides: Node) -> int:
    """More bits than the sides could hide: fractions of n bits come as near as 2n bits to a number."""
    written = 0
    for side in sides:
        for item in walk(side):
            if isinstance(item, Operation):
                return _AGREEMENT_OF_INTEGRALS
            if type(item) is Number:
                written += item.value.numerator.bit_length() + item.value.denominator.bit_length()
    return _FULL_AGREEMENT + 2 * written


def _same_function(gold: Node, response: Node, domain_of: dict[str, Domain]) -> bool | None:
    """None when the points decide nothing."""
    if len(domain_of) > MAX_SYMBOLS:
        return None
    kinds = set(domain_of.values())
    if not kinds & {Domain.VECTOR, Domain.MATRIX}:
        same = _same_rational(gold, response, domain_of)
        if same is not None:
            return same
    is_unreal = not kinds.isdisjoint(_UNREAL) or "i" in constants(gold) | constants(response)
    pair = _Pair(gold, response, complex_valued=is_unreal)
    drawing = Drawing(random_source(gold, response), domain_of)
    # The letters of an integral are lengths and rates, and it may converge for small ones only.
    has_integral = any(isinstance(item, Operation) for side in pair.sides for item in walk(side))
    found = _nearby(pair, drawing, other=fmpq(1, 4) if has_integral else fmpq(-1))
    if not domain_of:
        return {_At.SAME: True, _At.DIFFERENT: False}.get(next(iter(found)))
    if not has_integral and not found[_At.DIFFERENT] and kinds.isdisjoint((Domain.VECTOR, Domain.MATRIX)):
        found += _far_away(pair, drawing)
    if found[_At.DIFFERENT]:
        return False
    if found[_At.HIDDEN]:
        return None
    agreed_outside = found[_At.SAME] == 0 and found[_At.SAME_OUTSIDE] >= _WANTED_POINTS
    return True if found[_At.SAME] >= 2 or agreed_outside else None


def _nearby(pair: "_Pair", drawing: Drawing, *, other: fmpq) -> Counter[_At]:
    """By points of 0.2 to 3.1, up to a difference or until enough of them agree; the last to all digits."""
    found = Counter[_At]()
    for attempt in range(_MAX_POINTS):
        point = drawing.near(attempt, other=other)
        here = pair.at(point, _AGREEMENT, _MAX_POINT_BITS)
        if here is _At.SAME and (found[here] == _WANTED_POINTS - 1 or not point):
            here = pair.at(point, _full_agreement(*pair.sides), _MAX_BITS)
        found[here] += 1
        if found[_At.DIFFERENT] or not point or found[_At.SAME] >= _WANTED_POINTS:
            break
    return found


def _far_away(pair: "_Pair", drawing: Drawing) -> Counter[_At]:
    """By points of every magnitude, at jumps and on every piece, up to a difference.

    HIDDEN stands for a piece without a point that is within the budgets: a tower of powers, times 0, must not
    hide what the rest of a response does there."""
    found = Counter[_At]()
    for points in (drawing.integers(pair.sides), drawing.spread()):
        for point in points:
            found[pair.at(point, _AGREEMENT, _MAX_POINT_BITS)] += 1
            if found[_At.DIFFERENT]:
                return found
    del found[_At.HIDDEN]
    for piece in drawing.pieces(pair.sides):
        here = _on_piece(pair, piece)
        found[here] += 1
        if here is _At.DIFFERENT:
            break
    return found


def _on_piece(pair: "_Pair", piece: Piece) -> _At:
    """The verdict of the first of its points that decides."""
    hidden = False
    for values in piece.points:
        here = pair.at(values, _AGREEMENT, _MAX_POINT_BITS)
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


class _Pair:
    """Two expressions, compared at any point."""

    def __init__(self, gold: Node, response: Node, *, complex_valued: bool) -> None:
        """`complex_valued`: points outside the real domain count, too."""
        self.sides = (gold, response)
        self._gold, self._response = compiled(gold), compiled(response)
        self._complex_valued = complex_valued

    def same_exactly(self) -> bool | None:
        """Whether the sides are the same fraction; None unless both are numbers that are one."""
        try:
            gold, response = (
                value_at(side, Place({}, is_exact=True)) for side in (self._gold, self._response)
            )
        except (NotExact, NotNumber):
            return None
        return bool(gold == response)

    def at(self, values: Point, agreement: int, max_bits: int) -> _At:
        """The verdict at one point, where values must agree in `agreement` bits to be the same.

        In more where one side adds up numbers of different magnitudes, if there are digits enough."""
        is_positive = all(type(value) is fmpq and value > 0 for value in values.values())
        notes_spread, bits = agreement > _AGREEMENT, _BITS
        while True:
            with precision(bits):
                place = Place(values, notes_spread=notes_spread)
                found, agreed = self._compared(place, is_positive)
            needed = agreement + place.spread_bits
            if found is not _At.SAME and found is not _At.SAME_OUTSIDE and found is not _At.HIDDEN:
                return found
            if found is not _At.HIDDEN and agreed >= needed:
                return found
            if found is _At.HIDDEN:
                bits, max_bits = 4 * bits, min(max_bits, _MAX_POINT_BITS)
            else:
                bits = max(2 * bits, needed + max(0, bits - agreed) + 64)
            if bits > max_bits:
                return _At.NOTHING if found is _At.SAME_OUTSIDE else _At.HIDDEN

    def _compared(self, place: Place, is_positive: bool) -> tuple[_At, int]:
        """The verdict with the present precision, and the bits in which values that may be equal agree."""
        try:
            gold = value_at(self._gold, place)
            gold_counts = self._complex_valued or _is_real(gold, place, is_positive)
        except OutOfBudget:
            return _At.HIDDEN, 0
        except NotNumber:
            return _At.NOTHING, 0
        try:
            response = value_at(self._response, place)
            counts = gold_counts and (self._complex_valued or _is_real(response, place, is_positive))
        except OutOfBudget:
            return _At.HIDDEN if gold_counts else _At.NOTHING, 0
        except NotNumber:
            return _At.NOTHING, 0
        if type(gold) is fmpq and type(response) is fmpq:
            is_different = gold != response
        else:
            is_different = _differ(gold, response)
        if is_different:
            return _At.DIFFERENT if counts else _At.NOTHING, 0
        agreed = min(_agreed(gold, response), _agreed(response, gold))
        return _At.SAME if counts else _At.SAME_OUTSIDE, agreed


def _agreed(one: Value, other: Value) -> int:
    """Bits of a value that its ball guarantees, out of those in which it could differ from the other."""
    bits = accuracy(one)
    if type(one) in (arb, acb) and one.contains(0) and other != 0:
        # Some number near 0 may be 0, or 10^{-300}.
        return bits + min(0, magnitude(other) or 0)
    return bits


def _differ(one: Value, other: Value) -> bool:
    """Whether no number is in both balls."""
    if type(one) is acb_mat or type(other) is acb_mat:
        if type(one) is not type(other) or (one.nrows(), one.ncols()) != (other.nrows(), other.ncols()):
            return True
        return any(left != right for left, right in zip(one.entries(), other.entries(), strict=True))
    return bool(one - other != 0)


def _is_real(value: Value, place: Place, is_positive: bool) -> bool:
    r"""Whether a value is real, and for negative letters each part of it, too: \sqrt{a}\sqrt{b} is no real
    function of negative ones."""
    return (type(value) is not acb or value.imag.contains(0)) and (is_positive or not place.has_left_reals)
