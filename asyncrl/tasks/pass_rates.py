"""Pass rates of rows, as far as a run knows them, and the chance that a group of answers has a signal.

A row's pass rate s is Beta distributed. The prior is fitted to the last visits of the rows seen so far, by
maximum likelihood of the beta-binomial distribution; the evidence is the row's own graded trajectories. Both
count half after `half_life` versions, because the policy moves: a row that was not asked for long is as open
as a new one, and the prior is that of the rows asked lately.

Likelihood, not moments, because groups that end with their pilot have fewer answers where all were alike:
k / n is then biased to 0 and 1, but the likelihood of k of n answers is s^k (1 - s)^(n - k) whatever stopped
them (the stopping rule depends on the answers alone).

The chance of a signal is E[1 - s^N - (1 - s)^N] with E[s^N] = (a)_N / (a + b)_N for Beta(a, b), where (x)_N =
x (x + 1) ... (x + N - 1).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.records import PolicyVersion, RowVisit

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

FEWEST_VISITED = 16
"""Rows that the prior is fitted to at least; before, every pass rate is equally likely."""
_MEANS = (0.02, 0.98)
_SPREADS = (0.05, 0.95)
"""Bounds of the share of the variance that is between rows: 1 / (a + b + 1)."""
_NUM_ITERATIONS = 300


class PassRates:
    """R rows."""

    def __init__(self, num_rows: int, *, half_life: float) -> None:
        """`half_life` in versions."""
        self.num_rows = num_rows
        self._half_life = half_life
        self._right = np.zeros(num_rows)
        self._wrong = np.zeros(num_rows)
        self._as_of = np.zeros(num_rows, dtype=np.int64)
        self._last_rate = np.full(num_rows, np.nan)
        self._last_size = np.zeros(num_rows)
        self._prior = 1.0, 1.0

    def add(self, row: int, visit: RowVisit) -> None:
        """Visits of a row come in the order of their versions."""
        kept = float(self._decay(visit.version - self._as_of[row]))
        self._right[row] = kept * self._right[row] + visit.num_graded * visit.correct
        self._wrong[row] = kept * self._wrong[row] + visit.num_graded * (1.0 - visit.correct)
        self._as_of[row] = visit.version
        self._last_rate[row], self._last_size[row] = visit.correct, visit.num_graded

    def fit(self, version: PolicyVersion) -> None:
        """Fits the prior to the last visit of each row, as known at `version`."""
        visited = self._last_size > 0
        sizes = self._last_size[visited]
        if len(sizes) < FEWEST_VISITED or sizes.max() <= 1:
            return
        right = np.rint(self._last_rate[visited] * sizes)
        weights = self._decay(version - self._as_of[visited])
        self._prior = _most_likely(right.astype(np.int64), (sizes - right).astype(np.int64), weights)

    def prior(self) -> tuple[float, float]:
        """a and b of the Beta distribution of a row that nothing is known of."""
        return self._prior

    def posterior(self, version: PolicyVersion) -> tuple[Floats, Floats]:
        """a and b of each row. [R] twice."""
        kept = self._decay(version - self._as_of)
        return self._prior[0] + kept * self._right, self._prior[1] + kept * self._wrong

    def signal_chances(self, version: PolicyVersion, num_samples: int) -> Floats:
        """[R] the chance that a group of `num_samples` answers at `version` has two rewards."""
        a, b = self.posterior(version)
        found: Floats = 1.0 - all_same(a, b, num_samples) - all_same(b, a, num_samples)
        return found

    def mixed_chance(
        self, row: int | None, version: PolicyVersion, *, num_right: float, num_wrong: float, num_more: int
    ) -> float:
        """The chance that a group that has `num_right` and `num_wrong` answers, all of one kind, has two
        rewards once it has `num_more`. `row`: None where there is no record of it."""
        a, b = self._prior[0] + num_right, self._prior[1] + num_wrong
        if row is not None:
            kept = float(self._decay(version - self._as_of[row]))
            a, b = a + kept * float(self._right[row]), b + kept * float(self._wrong[row])
        same = all_same(a, b, num_more) if num_right else all_same(b, a, num_more)
        return 1.0 - float(same)

    def _decay(self, age: Any) -> Any:
        return 0.5 ** (np.maximum(age, 0) / self._half_life)


def beta_of(mean: float, share_between: float) -> tuple[float, float]:
    """a and b of the Beta distribution of this mean whose variance is `share_between` of mean (1 - mean)."""
    strength = 1.0 / float(np.clip(share_between, *_SPREADS)) - 1.0
    return mean * strength, (1.0 - mean) * strength


def _most_likely(right: Counts, wrong: Counts, weights: Floats) -> tuple[float, float]:
    """a and b that maximize the sum of w log[(a)_k (b)_l / (a + b)_(k + l)] over k right and l wrong answers,
    by the fixed point of Minka (2000), Estimating a Dirichlet distribution, for Polya's. [V] each."""
    rights, wrongs, both = (_weight_above(counts, weights) for counts in (right, wrong, right + wrong))
    a = b = 1.0
    for _ in range(_NUM_ITERATIONS):
        whole = _harmonic(both, a + b)
        a, b = _within_bounds(a * _harmonic(rights, a) / whole, b * _harmonic(wrongs, b) / whole)
    return a, b


def _weight_above(counts: Counts, weights: Floats) -> Floats:
    """[max(counts)] of i = 0, 1, ...: the weight of all counts above i."""
    found: Floats = np.bincount(counts, weights)[::-1].cumsum()[::-1][1:]
    return found


def _harmonic(weights: Floats, a: float) -> float:
    """Sum of w_i / (a + i)."""
    return float((weights / (a + np.arange(len(weights)))).sum())


def _within_bounds(a: float, b: float) -> tuple[float, float]:
    mean = min(max(a / (a + b), _MEANS[0]), _MEANS[1])
    least, most = (1.0 / spread - 1.0 for spread in reversed(_SPREADS))
    strength = min(max(a + b, least), most)
    return mean * strength, (1.0 - mean) * strength


def all_same(a: Any, b: Any, num_samples: int) -> Any:
    """E[s^N] for s of Beta(a, b): the chance that N answers are all right; of numbers or arrays."""
    chance = np.ones_like(np.asarray(a, dtype=np.float64))
    for i in range(num_samples):
        chance *= (a + i) / (a + b + i)
    return chance
