"""Pass rates of rows, as far as a run knows them, and the chance that a group of answers has a signal.

A row's pass rate s is Beta distributed: the prior is fitted to the rows visited so far (method of moments of
the beta-binomial distribution), the evidence is the row's own graded trajectories, halved every `half_life`
versions, because the policy moves. A row that was not asked for long is therefore as open as a new one.

The chance of a signal is E[1 - s^N - (1 - s)^N] with E[s^N] = (a)_N / (a + b)_N for Beta(a, b), where (x)_N =
x (x + 1) ... (x + N - 1).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.records import PolicyVersion, RowVisit

Floats = NDArray[np.float64]

FEWEST_VISITED = 16
"""Rows that the prior is fitted to at least; before, every pass rate is equally likely."""
_MEANS = (0.02, 0.98)
_SPREADS = (0.05, 0.95)
"""Bounds of the share of the variance that is between rows: 1 / (a + b + 1)."""


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

    def fit(self) -> None:
        """Fits the prior to the last visit of each row."""
        visited = self._last_size > 0
        if visited.sum() < FEWEST_VISITED:
            return
        rates, size = self._last_rate[visited], float(self._last_size[visited].mean())
        if size <= 1:
            return
        mean = float(np.clip(rates.mean(), *_MEANS))
        # Var(k / n) = m (1 - m) (1 / n + rho (1 - 1 / n)), with rho = 1 / (a + b + 1).
        rho = (float(rates.var()) / (mean * (1.0 - mean)) - 1.0 / size) / (1.0 - 1.0 / size)
        self._prior = beta_of(mean, rho)

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


def all_same(a: Any, b: Any, num_samples: int) -> Any:
    """E[s^N] for s of Beta(a, b): the chance that N answers are all right; of numbers or arrays."""
    chance = np.ones_like(np.asarray(a, dtype=np.float64))
    for i in range(num_samples):
        chance *= (a + i) / (a + b + i)
    return chance
