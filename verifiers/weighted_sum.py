"""Sums of scores by weight that do not depend on the order of their parts, nor on how floats round.

Two responses that earn the same by different parts get the same float: 0.1 + 0.4 is 0.5, and 0.7 + 0.1 is
0.8, as the numbers are written.
"""

import math
from collections.abc import Iterable
from fractions import Fraction


def weighted_sum(pairs: Iterable[tuple[float, float]], *, divisor: float = 1.0) -> float:
    """The float nearest to sum(weight * value) / divisor, each number taken as the decimal it is written as.

    `pairs` are (weight, value). NaN or infinite where one of them is.
    """
    pairs = list(pairs)
    if not all(math.isfinite(number) for pair in pairs for number in pair):
        return sum(weight * value for weight, value in pairs) / divisor
    total = sum((_exact(weight) * _exact(value) for weight, value in pairs), Fraction())
    try:
        return float(total / _exact(divisor))
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _exact(number: float) -> Fraction:
    return Fraction(repr(float(number)))
