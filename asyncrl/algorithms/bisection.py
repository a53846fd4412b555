"""Bounds over all tokens of an optimizer step, found by halving: no rank ever holds the others' values."""

import math
import struct
from collections.abc import Callable

_INFINITY_BITS = 0x7F800000


def largest_float(is_within: Callable[[float], bool]) -> float:
    """The largest float32 from 0 to inf that is within; `is_within` holds at 0, and never again once it does
    not. Asks 32 times at most."""
    if is_within(math.inf):
        return math.inf
    # Floats of at least 0 are in the order of their bits: 31 halvings find the last one, exactly.
    low, high = 0, _INFINITY_BITS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(_float_of(middle)) else (low, middle)
    return _float_of(low)


def _float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
