"""Intervals against values worked out by hand, and their coverage on simulated runs whose truth is known."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from asyncrl.observe.metrics.estimates import paired_difference
from asyncrl.readers.compare.groups import over_seeds, seeds_and_tasks, t_quantile

Floats = npt.NDArray[np.float64]


def test_quantiles_of_students_t_are_those_of_the_tables() -> None:
    known = {1: 12.7062, 2: 4.3027, 4: 2.7764, 9: 2.2622, 30: 2.0423}
    assert {degrees: round(t_quantile(degrees), 4) for degrees in known} == known
    assert t_quantile(1e9) == pytest.approx(1.96, abs=1e-3)


def test_an_interval_over_three_seeds_is_students() -> None:
    # Mean 0.5, standard deviation 0.1, t = 4.303: half 4.303 x 0.1 / sqrt(3)
    found = over_seeds([0.4, 0.5, 0.6])
    assert found.mean == pytest.approx(0.5)
    assert found.high - found.mean == pytest.approx(4.3027 * 0.1 / math.sqrt(3), abs=1e-4)
    assert over_seeds([1.0, 0.9]).high == 1.0


def simulated(
    generator: np.random.Generator, *, num_seeds: int, num_tasks: int, seed_spread: float, gap: float
) -> tuple[Floats, Floats]:
    """Two sides that answer the same tasks, some harder than others; a seed moves its whole run."""
    tasks = generator.normal(0.3, 1.0, num_tasks)

    def side(shift: float) -> Floats:
        seeds = generator.normal(0.0, seed_spread, (num_seeds, 1))
        noise = generator.normal(0.0, 0.5, (num_seeds, num_tasks))
        return (tasks + shift + seeds + noise > 0).astype(np.float64)

    return side(0.0), side(gap)


def true_gap(*, seed_spread: float, gap: float) -> float:
    """Of the shares of right answers, over all tasks and seeds there could be."""
    scale = math.sqrt(2 * (1.0 + 0.25 + seed_spread**2))
    return (math.erf((0.3 + gap) / scale) - math.erf(0.3 / scale)) / 2


def covered(num_trials: int, num_seeds: int, num_tasks: int, seed_spread: float) -> float:
    """The share of intervals that hold the truth."""
    generator = np.random.default_rng(0)
    truth = true_gap(seed_spread=seed_spread, gap=0.3)
    hits = 0
    for _ in range(num_trials):
        sizes = {"num_seeds": num_seeds, "num_tasks": num_tasks}
        first, second = simulated(generator, **sizes, seed_spread=seed_spread, gap=0.3)
        found = (
            paired_difference(first[0].tolist(), second[0].tolist())
            if num_seeds == 1
            else seeds_and_tasks(first, second)
        )
        hits += found.low <= truth <= found.high
    return hits / num_trials


@pytest.mark.parametrize("num_tasks", [pytest.param(30, marks=pytest.mark.exhaustive), 200])
def test_a_paired_interval_holds_the_truth_95_times_in_a_hundred(num_tasks: int) -> None:
    # Of 1,000 trials at 95%, all but one in a thousand end between 92.7% and 97.3%.
    assert covered(1_000, 1, num_tasks, 0.0) == pytest.approx(0.95, abs=0.023)


@pytest.mark.parametrize(
    ("num_seeds", "seed_spread"),
    [
        (3, 0.3),
        pytest.param(2, 0.2, marks=pytest.mark.exhaustive),
        pytest.param(5, 0.2, marks=pytest.mark.exhaustive),
    ],
)
def test_an_interval_over_seeds_and_tasks_holds_the_truth_95_times_in_a_hundred(
    num_seeds: int, seed_spread: float
) -> None:
    # Of 300 trials.
    assert covered(300, num_seeds, 100, seed_spread) == pytest.approx(0.95, abs=0.041)


def test_tasks_alone_would_miss_what_seeds_do() -> None:
    generator = np.random.default_rng(3)
    first, second = simulated(generator, num_seeds=3, num_tasks=200, seed_spread=0.3, gap=0.3)
    means = paired_difference(first.mean(axis=0).tolist(), second.mean(axis=0).tolist())
    both = seeds_and_tasks(first, second)
    assert both.mean == pytest.approx(means.mean)
    assert both.high - both.low > 2 * (means.high - means.low)


def test_seeds_that_differ_in_few_tasks_are_held_to_the_exact_test() -> None:
    # Every seed of one side is right on the same 4 tasks of 128 more, which chance makes in one of 8 pairs.
    first = np.zeros((3, 128))
    few, more = first.copy(), first.copy()
    few[:, :4], more[:, :9] = 1.0, 1.0
    assert seeds_and_tasks(first, few).low <= 0
    assert seeds_and_tasks(first, more).low > 0


def test_seeds_that_agree_everywhere_keep_an_interval() -> None:
    same = np.ones((3, 20))
    found = seeds_and_tasks(same, same)
    assert found.low < 0 == found.mean < found.high
