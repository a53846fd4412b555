"""Pass rates of rows, as far as a run knows them, and the shares of sources that follow where groups have a
signal.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.recipe import Recipe
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


# A source's pass rates are Beta distributed, fitted to its own graded groups by the method of moments of the
# beta-binomial distribution: k of n answers right estimate E[s] by k / n and E[s^2] by k (k - 1) / (n (n -
# 1)). A group counts half after `half_life` versions, and one of a source whose pass rates are all equally
# likely is added: a source that was not asked for long is tried again. The chance of a signal is that of
# `pass_rates`. Of the groups, the share `floor` follows the weights, the others weight times chance.
#
# As the choice of rows does, shares change with the trainer's version and read visits of older versions
# alone, and the source of each group follows from the shares and the sources before it. The journal has both.
PRIOR_GROUPS = 1.0
"""Added groups, of pass rates that are all equally likely."""
_UNIFORM = np.array([1.0, 1 / 2, 1 / 3])
"""Weight, E[s] and E[s^2] of a group where all pass rates are equally likely."""
_MEANS_SIGNAL_SHARES = (0.002, 0.998)


def make_shares(recipe: Recipe, weights: Sequence[float]) -> "SignalShares":
    """The shares of data.mixture; `weights` of the sources of data.train."""
    return SignalShares(
        weights,
        num_samples=recipe.rollout.samples_per_group,
        half_life=recipe.data.selection.half_life_steps,
        floor=recipe.data.mixture.floor,
    )


class SignalShares:
    """Chooses the source of each group."""

    def __init__(self, weights: Sequence[float], *, num_samples: int, half_life: float, floor: float) -> None:
        """`weights` are relative; `half_life` in versions."""
        self._weights = np.asarray(weights, dtype=np.float64) / sum(weights)
        self._num_samples = num_samples
        self._half_life = half_life
        self._floor = floor
        self.shares: Floats = self._weights
        """[sources] of the groups from now on; their sum is 1."""
        self.num_chosen = [0] * len(weights)
        """Groups of each source so far."""
        self._owed = np.zeros(len(weights))
        """Groups that each source has too few of, by its shares so far."""
        self._version: PolicyVersion = -1
        self._sums = np.zeros((len(weights), 3))
        """[sources, 3] of the groups read so far: weights, and weighted E[s] and E[s^2]."""
        self._unread: list[tuple[int, RowVisit]] = []

    def visited(self, source: int, visit: RowVisit) -> None:
        """A group of `source` was graded. One answer says nothing of a signal."""
        if visit.num_graded > 1:
            self._unread.append((source, visit))

    def choose(self, version: PolicyVersion) -> int:
        """The source of the next group, which is admitted."""
        self.learn(version)
        source = int(np.argmax(self._owed + self.shares))
        self.admitted(source, version)
        return source

    def admitted(self, source: int, version: PolicyVersion) -> None:
        """`source` was chosen, by this process or an earlier one."""
        self.learn(version)
        self._owed += self.shares
        self._owed[source] -= 1.0
        self.num_chosen[source] += 1

    def learn(self, version: PolicyVersion) -> None:
        """Reads the visits that are known for good now that the trainer is at `version`."""
        if version <= self._version:
            return
        self._sums *= self._decay(version - self._version)
        self._version = version
        known = [each for each in self._unread if each[1].version < version]
        self._unread = [each for each in self._unread if each[1].version >= version]
        # In one order, whichever verdict came first: sums of floats depend on it.
        for source, visit in sorted(known, key=lambda each: (each[1].version, each[1].group_id)):
            self._sums[source] += self._decay(version - visit.version) * _moments(visit)
        chances = np.array([self._chance(source) for source in range(len(self._weights))])
        wanted = self._weights * chances
        self.shares = self._floor * self._weights + (1.0 - self._floor) * wanted / wanted.sum()

    def _chance(self, source: int) -> float:
        """The chance that a group of the source has two rewards."""
        total, first, second = self._sums[source] + PRIOR_GROUPS * _UNIFORM
        mean = float(np.clip(first / total, *_MEANS_SIGNAL_SHARES))
        a, b = beta_of(mean, (second / total - mean**2) / (mean * (1.0 - mean)))
        return 1.0 - float(all_same(a, b, self._num_samples) + all_same(b, a, self._num_samples))

    def _decay(self, age: int) -> float:
        return float(0.5 ** (age / self._half_life))


def _moments(visit: RowVisit) -> Floats:
    """Weight, E[s] and E[s^2] of one group. Scores between right and wrong count as a part of an answer."""
    n, right = visit.num_graded, visit.num_graded * visit.correct
    return np.array([1.0, visit.correct, max(0.0, right * (right - 1.0)) / (n * (n - 1.0))])
