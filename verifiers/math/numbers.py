"""The numbers of an evaluation, and the place where it happens: values of letters, budgets, what was met."""

from collections.abc import Mapping, Sequence
from typing import Any

from flint import acb, arb, fmpq

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
