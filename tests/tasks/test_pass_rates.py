"""Pass rates and chances of a signal, against enumeration and simulation."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.records import RowVisit
from asyncrl.tasks.pass_rates import PassRates


def visit(version: int, num_graded: int, correct: float, group: int = 0) -> RowVisit:
    return RowVisit(group, version, num_graded, correct)


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
    rates.fit(0)
    a, b = rates.prior()
    assert a / (a + b) == pytest.approx(mean, abs=0.02)
    assert a + b == pytest.approx(strength, rel=0.15)


@pytest.mark.parametrize(("mean", "spread"), [(0.5, 0.1), (0.18, 0.12), (0.85, 0.6)])
def test_groups_that_end_with_their_pilot_do_not_make_rows_seem_more_different(
    mean: float, spread: float
) -> None:
    random, num_rows, pilot, whole = np.random.default_rng(3), 6000, 2, 8
    strength = 1 / spread - 1
    rates = PassRates(num_rows, half_life=10)
    for row, s in enumerate(random.beta(mean * strength, (1 - mean) * strength, num_rows)):
        size, right = pilot, random.binomial(pilot, s)
        if 0 < right < pilot:
            size, right = whole, right + random.binomial(whole - pilot, s)
        rates.add(row, visit(0, size, float(right) / size))
    rates.fit(0)
    a, b = rates.prior()
    assert a / (a + b) == pytest.approx(mean, abs=0.02)
    # By moments of k / n the spread of the first would be 0.5.
    assert 1 / (a + b + 1) == pytest.approx(spread, abs=0.04)


def test_the_prior_follows_the_rows_asked_lately() -> None:
    rates, random = PassRates(2000, half_life=10), np.random.default_rng(4)
    for row in range(2000):
        s = 0.2 if row < 1000 else 0.8
        version = 0 if row < 1000 else 50
        rates.add(row, visit(version, 8, float(random.binomial(8, s)) / 8))
    rates.fit(50)
    a, b = rates.prior()
    # 1000 rows at 0.2 count 1 / 32 each.
    assert a / (a + b) == pytest.approx((0.2 / 32 + 0.8) / (1 / 32 + 1), abs=0.02)


def test_answers_that_are_all_alike_give_a_prior_within_its_bounds() -> None:
    rates = PassRates(20, half_life=10)
    for row in range(20):
        rates.add(row, visit(0, 8, 1.0))
    rates.fit(0)
    a, b = rates.prior()
    assert a / (a + b) == pytest.approx(0.98) and b > 0


def test_few_rows_say_nothing_of_the_others() -> None:
    rates = PassRates(100, half_life=10)
    for row in range(15):
        rates.add(row, visit(0, 8, 0.0))
    rates.fit(0)
    assert rates.prior() == (1.0, 1.0)
    rates.add(15, visit(0, 8, 0.0))
    rates.fit(0)
    a, b = rates.prior()
    assert a / (a + b) == pytest.approx(0.02)


def test_rows_of_one_sample_do_not_tell_how_rows_differ() -> None:
    rates = PassRates(50, half_life=10)
    for row in range(50):
        rates.add(row, visit(0, 1, float(row % 2)))
    rates.fit(0)
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
