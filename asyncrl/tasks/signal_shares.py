"""Shares of the sources of a mixture that follow where groups have a signal: data.mixture.rebalance.

A source's pass rates are Beta distributed, fitted to its own graded groups by the method of moments of the
beta-binomial distribution: k of n answers right estimate E[s] by k / n and E[s^2] by k (k - 1) / (n (n - 1)).
A group counts half after `half_life` versions, and one of a source whose pass rates are all equally likely is
added: a source that was not asked for long is tried again. The chance of a signal is that of `pass_rates`.
Of the groups, the share `floor` follows the weights, the others weight times chance.

As the choice of rows does, shares change with the trainer's version and read visits of older versions alone,
and the source of each group follows from the shares and the sources before it. The journal has both.
"""

from collections.abc import Sequence

import numpy as np

from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion, RowVisit
from asyncrl.tasks.pass_rates import Floats, all_same, beta_of

PRIOR_GROUPS = 1.0
"""Added groups, of pass rates that are all equally likely."""
_UNIFORM = np.array([1.0, 1 / 2, 1 / 3])
"""Weight, E[s] and E[s^2] of a group where all pass rates are equally likely."""
_MEANS = (0.002, 0.998)


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
        mean = float(np.clip(first / total, *_MEANS))
        a, b = beta_of(mean, (second / total - mean**2) / (mean * (1.0 - mean)))
        return 1.0 - float(all_same(a, b, self._num_samples) + all_same(b, a, self._num_samples))

    def _decay(self, age: int) -> float:
        return float(0.5 ** (age / self._half_life))


def _moments(visit: RowVisit) -> Floats:
    """Weight, E[s] and E[s^2] of one group. Scores between right and wrong count as a part of an answer."""
    n, right = visit.num_graded, visit.num_graded * visit.correct
    return np.array([1.0, visit.correct, max(0.0, right * (right - 1.0)) / (n * (n - 1.0))])
