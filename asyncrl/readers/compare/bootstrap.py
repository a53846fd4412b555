"""Intervals of differences between runs that answered the same tasks. All of 95%, all seeded.

`crossed` resamples tasks and seeds: it says how far the difference between the *recipes* would move. Two
*runs* alone are compared by `estimates.paired_difference`, here as in `asyncrl eval`. `over_seeds` and
`welch` look at the means of runs alone. `combined` needs only an interval per side.

Percentile intervals are too narrow for few units: they know the spread as little as a normal interval with
an estimated variance does. Hesterberg (2015, The American Statistician 69(4)) widens the percentiles for
that; here the distance of both ends from the mean is stretched by t / z, with Welch's and Satterthwaite's
degrees of freedom. Coverage is tested on simulated runs (tests/readers/compare/test_bootstrap.py).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
import numpy.typing as npt

from asyncrl.observe.metrics.estimates import Z_95, held_to_exact_test

Floats = npt.NDArray[np.float64]
_CHUNK = 4_000_000
"""Draws that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Resampling:
    num_resamples: int = 10_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float

    def is_clear(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0


def crossed(first: Floats, second: Floats, resampling: Resampling) -> Interval:
    """Mean of second - first, [S1, n] and [S2, n] scores of several seeds on the same n tasks.

    Seeds of each side and the tasks are drawn with replacement, independently of each other: the pigeonhole
    bootstrap of crossed factors (Owen 2007, Annals of Applied Statistics 1(2)). It counts the interaction of
    seeds and tasks more than once, so it is too wide rather than too narrow where seeds hardly differ. Few
    tasks whose means over seeds differ are held to the exact test, which resampling does not know.
    """
    mean = float(second.mean() - first.mean())
    generator = np.random.default_rng(resampling.seed)
    # Tasks with equal scores everywhere are alike: draw how often each kind comes.
    kinds, counts = np.unique(np.vstack([first, second]), axis=1, return_counts=True)
    n, (num_first, num_second) = counts.sum(), (len(first), len(second))
    found = []
    rows = max(1, _CHUNK // len(counts))
    for size in _chunks(resampling.num_resamples, rows):
        tasks = generator.multinomial(n, counts / n, size=size) / n
        means = tasks @ kinds.T
        weights = [
            generator.multinomial(num, np.full(num, 1 / num), size=size) / num
            for num in (num_first, num_second)
        ]
        sides = means[:, :num_first], means[:, num_first:]
        before, after = ((side * weight).sum(axis=1) for side, weight in zip(sides, weights, strict=True))
        found.append(after - before)
    variances = [
        (float((second.mean(axis=0) - first.mean(axis=0)).var(ddof=1) / n), n - 1) if n > 1 else (0.0, 1),
        (_variance_of_mean(first.mean(axis=1)), num_first - 1),
        (_variance_of_mean(second.mean(axis=1)), num_second - 1),
    ]
    resampled = _stretched(mean, np.concatenate(found), degrees=_degrees(variances))
    differences = (second.mean(axis=0) - first.mean(axis=0)).tolist()
    return Interval(mean, *held_to_exact_test(resampled.low, resampled.high, differences))


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Mean of one number per seed by Student's t; None for fewer than two seeds."""
    if len(values) < 2:
        return None
    found = np.asarray(values, dtype=np.float64)
    mean, half = float(found.mean()), t_quantile(len(values) - 1) * math.sqrt(_variance_of_mean(found))
    return Interval(mean, mean - half, mean + half)


def welch(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Difference of the means over seeds, second - first, by Welch's t interval (Welch 1947, Biometrika 34);
    None where a side has fewer than two seeds."""
    if min(len(first), len(second)) < 2:
        return None
    sides = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    mean = float(sides[1].mean() - sides[0].mean())
    variances = [(_variance_of_mean(side), len(side) - 1) for side in sides]
    half = t_quantile(_degrees(variances)) * math.sqrt(sum(variance for variance, _ in variances))
    return Interval(mean, mean - half, mean + half)


def combined(first: Interval, second: Interval) -> Interval:
    """second - first of two independent means from their own intervals (Newcombe 1998, Statistics in Medicine
    17(8), method 10; Zou and Donner 2008, Statistics in Medicine 27). Not paired: wider than it needs to be
    where both answered the same tasks. Of shares with bounds in [0, 1] it stays in [-1, 1]."""
    mean = second.mean - first.mean
    low = mean - math.hypot(second.mean - second.low, first.high - first.mean)
    high = mean + math.hypot(second.high - second.mean, first.mean - first.low)
    return Interval(mean, low, high)


@functools.cache
def t_quantile(degrees: float) -> float:
    """97.5% quantile of Student's t, for whole or broken degrees of freedom of 1 or more."""
    if degrees > 10_000:
        return Z_95

    def outside(t: float) -> float:
        """Chance of a value beyond -t or t, from the incomplete beta function (Abramowitz and Stegun
        26.7.1)."""
        x = degrees / (degrees + t * t)
        return float(mpmath.betainc(degrees / 2, 0.5, 0, x, regularized=True))

    low, high = 1.0, 20.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if outside(middle) > 0.05 else (low, middle)
    return low


def _stretched(mean: float, resampled: Floats, *, degrees: float) -> Interval:
    """The percentile interval, its ends moved away from the mean by t / z."""
    low, high = np.quantile(resampled, (0.025, 0.975))
    stretch = t_quantile(degrees) / Z_95 if degrees >= 1 else 1.0
    return Interval(mean, mean + stretch * (float(low) - mean), mean + stretch * (float(high) - mean))


def _degrees(variances: Sequence[tuple[float, int]]) -> float:
    """Degrees of freedom of a sum of independent means (variance, degrees), by Welch and Satterthwaite."""
    whole = sum(variance for variance, _ in variances)
    if whole == 0:
        return float(max(degrees for _, degrees in variances))
    found = whole**2 / sum(variance**2 / degrees for variance, degrees in variances if degrees)
    # Rounded: the quantile of few different numbers is worth remembering.
    return max(1.0, round(found, 1))


def _variance_of_mean(values: Floats) -> float:
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else 0.0


def _chunks(whole: int, size: int) -> list[int]:
    full, rest = divmod(whole, size)
    return [size] * full + ([rest] if rest else [])
