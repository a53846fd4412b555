"""Pass rates and chances of a signal, against enumeration and simulation."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.records import RowVisit
from asyncrl.tasks.pass_rates import PassRates, all_same


def visit(version: int, num_graded: int, correct: float, group: int = 0) -> RowVisit:
    return RowVisit(group, version, num_graded, correct)


@pytest.mark.parametrize(("a", "b", "num_samples"), [(1.0, 1.0, 8), (0.3, 2.0, 3), (5.0, 1.5, 16)])
def test_the_chance_that_all_are_right_is_the_mean_of_s_to_the_n(
    a: float, b: float, num_samples: int
) -> None:
    drawn = np.random.default_rng(0).beta(a, b, 400_000)
    assert float(all_same(a, b, num_samples)) == pytest.approx((drawn**num_samples).mean(), abs=2e-3)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 5))
def test_chances_of_urns_are_those_of_enumerated_draws(right: int, wrong: int, num_samples: int) -> None:
    """With the prior of equal likelihood, answers are drawn as from Polya's urn."""
    rates = PassRates(1, half_life=10)
    if right + wrong:
        rates.add(0, visit(0, right + wrong, right / (right + wrong)))
    mixed = 0.0
    for answers in itertools.product((True, False), repeat=num_samples):
        a, b, chance = 1.0 + right, 1.0 + wrong, 1.0
        for answer in answers:
            chance *= (a if answer else b) / (a + b)
            a, b = a + answer, b + (not answer)
        mixed += chance * (len(set(answers)) > 1)
    assert rates.signal_chances(0, num_samples)[0] == pytest.approx(mixed, abs=1e-9)


def test_evidence_counts_half_after_the_half_life_and_a_row_opens_up_again() -> None:
    rates = PassRates(2, half_life=10)
    rates.add(0, visit(5, 8, 0.0))
    a, b = rates.posterior(5)
    assert (a[0], b[0]) == (1.0, 9.0)
    a, b = rates.posterior(15)
    assert (a[0], b[0]) == (1.0, 5.0)
    chances = [float(rates.signal_chances(version, 8)[0]) for version in (5, 15, 35, 1000)]
    assert chances == sorted(chances)
    assert chances[-1] == pytest.approx(float(rates.signal_chances(1000, 8)[1]))


@pytest.mark.parametrize("strength", [0.3, 1.0, 4.0])
def test_the_prior_is_that_of_the_rows_seen(strength: float) -> None:
    random = np.random.default_rng(1)
    mean, size, num_rows = 0.3, 8, 4000
    rates = PassRates(num_rows, half_life=10)
    for row, s in enumerate(random.beta(mean * strength, (1 - mean) * strength, num_rows)):
        rates.add(row, visit(0, size, float(random.binomial(size, s)) / size))
    rates.fit()
    a, b = rates.prior()
    assert a / (a + b) == pytest.approx(mean, abs=0.02)
    assert a + b == pytest.approx(strength, rel=0.15)


def test_few_rows_say_nothing_of_the_others() -> None:
    rates = PassRates(100, half_life=10)
    for row in range(15):
        rates.add(row, visit(0, 8, 0.0))
    rates.fit()
    assert rates.prior() == (1.0, 1.0)
    rates.add(15, visit(0, 8, 0.0))
    rates.fit()
    a, b = rates.prior()
    assert a / (a + b) == pytest.approx(0.02)


def test_rows_of_one_sample_do_not_tell_how_rows_differ() -> None:
    rates = PassRates(50, half_life=10)
    for row in range(50):
        rates.add(row, visit(0, 1, float(row % 2)))
    rates.fit()
    assert rates.prior() == (1.0, 1.0)


def test_a_pilot_of_wrong_answers_is_mixed_later_as_often_as_simulated() -> None:
    rates = PassRates(1, half_life=10)
    rates.add(0, visit(0, 8, 0.125))
    random = np.random.default_rng(2)
    s = random.beta(2.0, 8.0, 400_000)
    pilot = random.binomial(4, s)
    more = random.binomial(12, s)[pilot == 0]
    found = rates.mixed_chance(0, 0, num_right=0, num_wrong=4, num_more=12)
    assert found == pytest.approx((more > 0).mean(), abs=5e-3)
