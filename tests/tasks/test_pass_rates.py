"""Pass rates and chances of a signal, against enumeration and simulation."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.records import RowVisit
from asyncrl.tasks.pass_rates import PassRates, SignalShares


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


BATCH, SAMPLES = 16, 8
FLOOR = 0.2


def shares_of(weights: Sequence[float], floor: float = FLOOR) -> SignalShares:
    return SignalShares(weights, num_samples=SAMPLES, half_life=5, floor=floor)


class Simulated:
    """A synchronous run whose sources have pass rates; what it was told is kept for a later start."""

    def __init__(self, seed: int = 0) -> None:
        self.admissions: list[tuple[int, int]] = []
        self.visits: list[tuple[int, RowVisit]] = []
        self.rng = random.Random(seed)

    def play(self, shares: SignalShares, rates: Sequence[float], versions: range) -> Counter[int]:
        """Groups of each source over these versions."""
        chosen: Counter[int] = Counter()
        for version in versions:
            visits = []
            for _ in range(BATCH):
                source = shares.choose(version)
                right = sum(self.rng.random() < rates[source] for _ in range(SAMPLES))
                visits.append((source, RowVisit(len(self.admissions), version, SAMPLES, right / SAMPLES)))
                self.admissions.append((source, version))
                chosen[source] += 1
            # Verdicts come in any order.
            self.rng.shuffle(visits)
            for source, visit in visits:
                shares.visited(source, visit)
            self.visits += visits
        return chosen


def test_shares_go_where_the_signal_is_and_come_back_when_it_changes() -> None:
    shares, run = shares_of([1.0, 1.0, 2.0]), Simulated()
    assert shares.shares == pytest.approx([0.25, 0.25, 0.5])
    run.play(shares, [1.0, 0.5, 0.0], range(40))
    chosen = run.play(shares, [1.0, 0.5, 0.0], range(40, 60))
    # The one with a signal has three quarters of the groups, though its weight is a quarter.
    assert chosen[1] / (20 * BATCH) > 0.7
    # Nothing starves: each keeps FLOOR of its weight's share, and a little for what is not sure.
    assert chosen[0] >= FLOOR * 0.25 * 20 * BATCH - 1 and chosen[2] >= FLOOR * 0.5 * 20 * BATCH - 1
    # Now the first is learned, and the third begins to be.
    run.play(shares, [1.0, 0.98, 0.4], range(60, 90))
    chosen = run.play(shares, [1.0, 0.98, 0.4], range(90, 110))
    assert chosen[2] / (20 * BATCH) > 0.7
    run.play(shares, [1.0, 0.5, 0.0], range(110, 150))
    assert run.play(shares, [1.0, 0.5, 0.0], range(150, 170))[1] / (20 * BATCH) > 0.7


def test_sources_with_the_same_signal_keep_the_shares_of_their_weights() -> None:
    shares, run = shares_of([1.0, 3.0]), Simulated()
    chosen = run.play(shares, [0.5, 0.5], range(100))
    assert chosen[0] / chosen.total() == pytest.approx(0.25, abs=0.02)


def test_a_floor_of_1_leaves_the_weights_and_groups_never_lag_behind_their_share() -> None:
    shares, run = shares_of([1.0, 2.0, 5.0], floor=1.0), Simulated()
    for version in range(30):
        run.play(shares, [1.0, 0.5, 0.0], range(version, version + 1))
        exact = len(run.admissions) * np.array([1.0, 2.0, 5.0]) / 8
        assert np.abs(np.array(shares.num_chosen) - exact).max() < 1.0


@pytest.mark.parametrize("until", [1, 7, 30])
def test_a_run_that_resumes_chooses_the_sources_that_it_would_have_chosen(until: int) -> None:
    shares, run = shares_of([1.0, 1.0, 2.0]), Simulated()
    run.play(shares, [1.0, 0.5, 0.1], range(until))
    again = shares_of([1.0, 1.0, 2.0])
    for source, visit in run.visits:
        again.visited(source, visit)
    for source, version in run.admissions:
        again.admitted(source, version)
    # The newest version's visits were all told: the next choices are of the same numbers.
    expected = [shares.choose(until) for _ in range(40)]
    assert [again.choose(until) for _ in range(40)] == expected
    assert np.array_equal(again.shares, shares.shares)


def test_visits_of_the_present_version_change_nothing_yet() -> None:
    shares = shares_of([1.0, 1.0])
    shares.learn(3)
    before = shares.shares
    shares.visited(0, RowVisit(0, 3, SAMPLES, 1.0))
    shares.learn(3)
    assert np.array_equal(shares.shares, before)
    shares.learn(4)
    assert shares.shares[0] < shares.shares[1]


def test_the_chance_is_that_of_the_fitted_distribution() -> None:
    """After many groups of Beta(2, 2): 1 - 2 E[s^8], with E[s^8] = (2 ... 9) / (4 ... 11)."""
    shares, rng = SignalShares([1.0, 1.0], num_samples=8, half_life=1e9, floor=0.5), np.random.default_rng(0)
    for group, rate in enumerate(rng.beta(2.0, 2.0, size=4000)):
        shares.visited(0, RowVisit(group, 0, SAMPLES, rng.binomial(SAMPLES, rate) / SAMPLES))
    shares.learn(1)
    one_kind = np.prod([(2 + i) / (4 + i) for i in range(8)])
    uniform = 1 / 9
    ratio = (1 - 2 * one_kind) / (1 - 2 * uniform)
    # Of the half that follows the signal.
    assert (shares.shares[0] - 0.25) / (shares.shares[1] - 0.25) == pytest.approx(ratio, abs=0.02)
