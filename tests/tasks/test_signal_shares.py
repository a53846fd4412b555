"""Shares of sources that follow the signal: where they go, that none starves, that a restart repeats them."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from asyncrl.records import RowVisit
from asyncrl.tasks.pass_rates import SignalShares

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
