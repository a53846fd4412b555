"""Runs whose recipes differ in their seed alone, as one group: its numbers, with intervals over seeds and
tasks.
"""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asyncrl.observe.metrics.estimates import Z_95, held_to_exact_test, with_two_tasks_more
from asyncrl.readers.compare.recorded import RecordedRun, without_seed
from asyncrl.run.metrics_file import Row

# Two *runs* alone are compared by `estimates.paired_difference`, here as in `asyncrl eval`; several seeds a
# side say how far the difference between the *recipes* would move. Coverage is tested on simulated runs
# (tests/readers/compare/test_intervals.py).
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float


def seeds_and_tasks(first: Floats, second: Floats) -> Interval:
    """Mean of second - first, [S1, n] and [S2, n] scores of several seeds on the same n tasks.

    Seeds of each side and tasks are three independent samples: their variances of the mean add up, and
    Student's t has the degrees of freedom of Welch and Satterthwaite (Satterthwaite 1946, Biometrics Bulletin
    2(6)). What seeds and tasks share is counted more than once, as by the pigeonhole bootstrap (Owen 2007,
    Annals of Applied Statistics 1(2)): too wide rather than too narrow where seeds hardly differ. Few tasks
    whose means over seeds differ are held to the exact test.
    """
    differences = (second.mean(axis=0) - first.mean(axis=0)).tolist()
    _, variance = with_two_tasks_more(differences)
    parts = [(variance, len(differences) + 1)]
    parts += [(_variance_of_mean(side.mean(axis=1)), len(side) - 1) for side in (first, second)]
    mean = float(second.mean() - first.mean())
    half = t_quantile(_degrees(parts)) * math.sqrt(sum(variance for variance, _ in parts))
    low, high = held_to_exact_test(mean - half, mean + half, differences)
    return Interval(mean, max(-1.0, low), min(1.0, high))


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean of one share per seed by Student's t, its ends within [0, 1]. Two seeds at least."""
    found = np.asarray(values, dtype=np.float64)
    mean, half = float(found.mean()), t_quantile(len(values) - 1) * math.sqrt(_variance_of_mean(found))
    return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))


@functools.cache
def t_quantile(degrees: float) -> float:
    """97.5% quantile of Student's t, for whole or broken degrees of freedom of 1 or more."""
    if degrees > 10_000:
        return Z_95
    # Here, since `asyncrl status` imports this file and needs no quantile.
    import mpmath

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


def _degrees(parts: Sequence[tuple[float, int]]) -> float:
    """Degrees of freedom of a sum of independent means (variance, degrees)."""
    whole = sum(variance for variance, _ in parts)
    found = whole**2 / sum(variance**2 / degrees for variance, degrees in parts)
    # Rounded: the quantile of few different numbers is worth remembering.
    return max(1.0, round(found, 1))


def _variance_of_mean(values: Floats) -> float:
    return float(values.var(ddof=1) / len(values))


_ENDINGS = "-_. 0123456789/~"


@dataclass(frozen=True)
class Group:
    label: str
    runs: list[RecordedRun]

    def accuracy(self) -> Interval | None:
        """Greedy accuracy of each run's last evaluation: over seeds if there are several, else over tasks."""
        rows = [row for run in self.runs if (row := run.last_evaluation()) is not None]
        return interval_of(rows) if len(rows) == len(self.runs) else None


def interval_of(rows: Sequence[Row]) -> Interval:
    """Greedy accuracy, a row per run: Student's over several runs, the row's own for a single one."""
    if len(rows) == 1:
        (row,) = rows
        return Interval(row["greedy_accuracy"], row["greedy_low"], row["greedy_high"])
    return over_seeds([float(row["greedy_accuracy"]) for row in rows])


def grouped(runs: Sequence[RecordedRun]) -> list[Group]:
    """Groups in the order of their first runs."""
    alike: dict[tuple[str, int], list[RecordedRun]] = {}
    times: Counter[tuple[str, int]] = Counter()
    for run in runs:
        recipe = without_seed(run.recipe)
        alike.setdefault((recipe, times[recipe, run.seed]), []).append(run)
        times[recipe, run.seed] += 1
    labels: list[str] = []
    for members in alike.values():
        label = _label([run.label for run in members])
        taken = {*labels, *(run.label for run in runs if run not in members)}
        labels.append(label if label and label not in taken else members[0].label)
    return [Group(label, members) for label, members in zip(labels, alike.values(), strict=True)]


def repeats(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Label of a run -> label of the first one with its recipe and seed; of runs that are not the first."""
    firsts: dict[tuple[str, int], str] = {}
    found = {run.label: firsts.setdefault((without_seed(run.recipe), run.seed), run.label) for run in runs}
    return {label: first for label, first in found.items() if label != first}


def _label(names: list[str]) -> str:
    """The common beginning of the names of its runs."""
    if len(names) == 1:
        return names[0]
    length = 0
    while all(length < len(name) and name[length] == names[0][length] for name in names):
        length += 1
    return names[0][:length].rstrip(_ENDINGS).removesuffix("seed").rstrip(_ENDINGS)
