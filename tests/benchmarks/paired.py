"""Arithmetic of paired comparisons: intervals, sign-flip permutation tests, Holm's correction, areas."""

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from asyncrl.readers.compare.groups import t_quantile

MOST_PAIRS = 20
"""Sign flips are enumerated: 2^20 sums are a few seconds."""
EQUAL = 1e-12
"""Sums closer together than this, as a share of the largest possible one, count as equal: the order of a
sum's terms must not decide what is as extreme."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half width of its 95% interval by Student's t); no width for a single value."""
    if len(values) < 2:
        return values[0], math.nan
    width = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), width


def plus_minus(values: Sequence[float], digits: int = 1) -> str:
    """The mean and half of its interval in words; "never" where there is no value."""
    if not values:
        return "never"
    mean, width = interval(values)
    return f"{mean:.{digits}f}" + ("" if math.isnan(width) else f" ± {width:.{digits}f}")


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided p of "the sign of each paired difference is a coin": the share of all 2^n sign flips
    whose sum is at least as far from 0 as the one observed (Fisher 1935). At least 2 / 2^n where one
    difference is not 0. Raises ValueError for no pairs or more than MOST_PAIRS."""
    if not 1 <= len(differences) <= MOST_PAIRS:
        raise ValueError(f"{len(differences)} pairs; expected 1 to {MOST_PAIRS}.")
    slack = EQUAL * sum(map(abs, differences))
    observed = abs(math.fsum(differences)) - slack
    sums = [0.0]
    for difference in differences:
        sums = [total + sign * difference for total in sums for sign in (1, -1)]
    return sum(abs(total) >= observed for total in sums) / len(sums)


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number, in their order (Holm 1979): the i-th smallest of m, counted from
    0, times m - i, at most 1 and never below a smaller one's."""
    order = sorted(range(len(values)), key=values.__getitem__)
    scaled = [min(1.0, (len(values) - rank) * values[place]) for rank, place in enumerate(order)]
    corrected = dict(zip(order, itertools.accumulate(scaled, max), strict=True))
    return [corrected[place] for place in range(len(values))]


def mean_height(curve: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Area under the curve of (place, height) between two places, over their distance: trapezoids, with the
    heights at `begin` and `end` on the line between their neighbors. Raises ValueError where the curve does
    not reach from one to the other."""
    points = sorted(curve)
    if not points or begin >= end or points[0][0] > begin or points[-1][0] < end:
        reach = f"{points[0][0]} to {points[-1][0]}" if points else "nothing"
        raise ValueError(f"The curve covers {reach}; expected {begin} to {end}.")
    known, heights = zip(*points, strict=True)
    cut = [begin, *(place for place in known if begin < place < end), end]
    return float(np.trapezoid(np.interp(cut, known, heights), cut)) / (end - begin)
