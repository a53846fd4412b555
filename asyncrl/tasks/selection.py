"""The choice of the row that the next group asks, where data.selection is not uniform.

A choice is a function of the seed, its position, and of what the journal holds: the choices before it, and
the visits that were graded before the trainer reached its present version. Later visits wait until the next
version: by then all visits of the version before are known, so choices do not depend on which of two verdicts
came first. The journal has each choice as the row of its group, and a run that resumes folds both again.

Each source of a mixture is chosen from by itself, at the positions that its weight gives it.

Besides its own rule each selection has *passes*: a pass asks every row that may be asked once, in random
order. `curriculum` and `retire` choose by passes alone, `learnable` in the share `floor` of its choices.
"""

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion, RowVisit
from asyncrl.tasks.pass_rates import Floats, PassRates

Mask = NDArray[np.bool_]


class Rule(Protocol):
    floor: float
    """Share of the choices that passes make."""

    def learned(self, row: int, visit: RowVisit) -> None:
        """A visit of `row`; visits come in the order of version and group."""
        ...

    def may_ask(self, version: PolicyVersion) -> Mask:
        """[R] rows that passes ask."""
        ...

    def weights(self, version: PolicyVersion) -> Floats | None:
        """[R] relative chances of the choices that passes do not make; None where passes make all."""
        ...


class Learnable:
    """By the chance that a group of the row has a signal."""

    def __init__(self, rates: PassRates, *, num_samples: int, floor: float) -> None:
        self.floor = floor
        self._rates = rates
        self._num_samples = num_samples

    def learned(self, row: int, visit: RowVisit) -> None:
        """`PassRates` has it already."""

    def may_ask(self, version: PolicyVersion) -> Mask:
        return np.ones(self._rates.num_rows, dtype=np.bool_)

    def weights(self, version: PolicyVersion) -> Floats:
        return self._rates.signal_chances(version, self._num_samples)


class Curriculum:
    """Rows in stages from easy to hard, each source by itself: its first stage, then the others one by one,
    when the mean pass rate of the last `num_visits` visits to the newest stage reaches `advance_at`."""

    floor = 1.0

    def __init__(
        self,
        levels: Sequence[float],
        sizes: Sequence[int],
        *,
        num_stages: int,
        advance_at: float,
        num_visits: int,
    ) -> None:
        """`levels`: [R] how hard each row is."""
        found = np.asarray(levels, dtype=np.float64)
        self._starts = [sum(sizes[:source]) for source in range(len(sizes))]
        parts = [found[s : s + n] for s, n in zip(self._starts, sizes, strict=True)]
        self._stages = np.concatenate([_stages(part, num_stages) for part in parts])
        self._last = [int(_stages(part, num_stages).max()) for part in parts]
        self.open = [0] * len(sizes)
        """By source, its newest stage."""
        self._advance_at = advance_at
        self._visits: list[deque[float]] = [deque(maxlen=num_visits) for _ in sizes]

    def learned(self, row: int, visit: RowVisit) -> None:
        source = bisect_right(self._starts, row) - 1
        visits, stage = self._visits[source], self.open[source]
        if self._stages[row] != stage or stage == self._last[source]:
            return
        visits.append(visit.correct)
        if len(visits) == visits.maxlen and sum(visits) >= self._advance_at * len(visits):
            self.open[source] += 1
            visits.clear()

    def may_ask(self, version: PolicyVersion) -> Mask:
        ends = [*self._starts[1:], len(self._stages)]
        parts = zip(self._starts, ends, self.open, strict=True)
        return np.concatenate([self._stages[start:end] <= stage for start, end, stage in parts])

    def weights(self, version: PolicyVersion) -> None:
        return None


def _stages(levels: Floats, num_stages: int) -> NDArray[np.int64]:
    """[R] of each row, from 0 without gaps: equal shares of the rows, but rows of one level together."""
    below = np.searchsorted(np.sort(levels), levels, side="left") / len(levels)
    _, stages = np.unique(np.floor(below * num_stages), return_inverse=True)
    return stages.astype(np.int64)


class Retire:
    """Rows that were solved in the last `num_visits` visits rest for `rest_versions`, then are checked."""

    floor = 1.0

    def __init__(self, num_rows: int, *, num_visits: int, rest_versions: int) -> None:
        self._num_visits = num_visits
        self._rest_versions = rest_versions
        self._num_solved = np.zeros(num_rows, dtype=np.int64)
        """Last visits in a row in which every trajectory was right."""
        self._rests_until = np.zeros(num_rows, dtype=np.int64)

    def learned(self, row: int, visit: RowVisit) -> None:
        self._num_solved[row] = self._num_solved[row] + 1 if visit.correct >= 1.0 else 0
        if self._num_solved[row] >= self._num_visits:
            self._rests_until[row] = visit.version + self._rest_versions

    def may_ask(self, version: PolicyVersion) -> Mask:
        return self._rests_until <= version

    def weights(self, version: PolicyVersion) -> None:
        return None


def make_selection(recipe: Recipe, levels: Sequence[float], sizes: Sequence[int]) -> "RowSelection":
    """That of data.selection. `levels`: [R] of data.selection.column; `sizes`: rows of each source."""
    section, rollout = recipe.data.selection, recipe.rollout
    rates = PassRates(sum(sizes), half_life=section.half_life_steps)
    rule: Rule | None = None
    match section.by:
        case "learnable":
            rule = Learnable(rates, num_samples=rollout.samples_per_group, floor=section.floor)
        case "curriculum":
            rule = Curriculum(
                levels if section.easy == "low" else [-level for level in levels],
                sizes,
                num_stages=section.stages,
                advance_at=section.advance_at,
                num_visits=section.advance_visits,
            )
        case "retire":
            rule = Retire(sum(sizes), num_visits=section.solved_visits, rest_versions=section.rest_steps)
    return RowSelection(rule, rates, sizes, seed=recipe.seed, reach=rollout.max_staleness)


class RowSelection:
    """Chooses rows, and keeps what `PassRates` and a rule know up to date. Without a rule it only keeps."""

    def __init__(
        self, rule: Rule | None, rates: PassRates, sizes: Sequence[int], *, seed: int, reach: int
    ) -> None:
        """`sizes`: rows of each source. `reach`: most versions from a group's admission to its end."""
        self._rule = rule
        self.rates = rates
        self._starts = [sum(sizes[:source]) for source in range(len(sizes))]
        self._ends = [start + size for start, size in zip(self._starts, sizes, strict=True)]
        self._seed = seed
        self._reach = reach
        self._version: PolicyVersion = -1
        self._unread: list[tuple[PolicyVersion, int, int, RowVisit]] = []
        """(version, group, row, visit) that no choice knows yet."""
        num_rows = sum(sizes)
        self._may_ask = np.ones(num_rows, dtype=np.bool_)
        self._pass_of = np.zeros(num_rows, dtype=np.int64)
        """The pass that asked a row last; 0: none."""
        self._pass = [1] * len(sizes)
        self._num_left = list(sizes)
        """Rows that the pass still asks."""
        self._awaited_until = np.full(num_rows, -1, dtype=np.int64)
        """Version after which the group of a row has ended at the latest; -1 once its visit is known."""
        self._weights: Floats | None = None

    def choose(self, source: int, position: int, version: PolicyVersion) -> int:
        """The row of the next group, which is admitted."""
        assert self._rule is not None
        self._begin(source, version)
        rng = random.Random(f"{self._seed}-selection-{position}")
        row = None
        if rng.random() >= self._rule.floor:
            row = self._draw(source, rng.random())
        if row is None:
            row = self._of_pass(source, rng.random())
        self._note(source, row, version)
        return row

    def admitted(self, row: int, version: PolicyVersion) -> None:
        """An earlier process chose `row`."""
        source = bisect_right(self._starts, row) - 1
        self._begin(source, version)
        self._note(source, row, version)

    def visited(self, row: int, visit: RowVisit) -> None:
        self._unread.append((visit.version, visit.group_id, row, visit))

    def learn(self, version: PolicyVersion) -> None:
        """Reads the visits that are known for good now that the trainer is at `version`."""
        if version <= self._version:
            return
        self._version = version
        known = sorted((each for each in self._unread if each[0] < version), key=itemgetter(0, 1))
        self._unread = [each for each in self._unread if each[0] >= version]
        for _, _, row, visit in known:
            self.rates.add(row, visit)
            self._awaited_until[row] = -1
            if self._rule is not None:
                self._rule.learned(row, visit)
        self.rates.fit(version)
        if self._rule is not None:
            self._may_ask = self._rule.may_ask(version)
            self._num_left = [self._count_left(source) for source in range(len(self._starts))]
            self._weights = self._rule.weights(version)
        if self._weights is not None:
            self._weights[self._awaited_until >= version] = 0.0

    def _begin(self, source: int, version: PolicyVersion) -> None:
        self.learn(version)
        if not self._num_left[source]:
            self._pass[source] += 1
            self._num_left[source] = self._count_left(source)

    def _note(self, source: int, row: int, version: PolicyVersion) -> None:
        if self._may_ask[row] and self._pass_of[row] < self._pass[source]:
            self._num_left[source] -= 1
        self._pass_of[row] = self._pass[source]
        self._awaited_until[row] = version + self._reach
        if self._weights is not None:
            self._weights[row] = 0.0

    def _count_left(self, source: int) -> int:
        return int(self._left(source).sum())

    def _left(self, source: int) -> Mask:
        rows = slice(self._starts[source], self._ends[source])
        found: Mask = self._may_ask[rows] & (self._pass_of[rows] < self._pass[source])
        return found

    def _of_pass(self, source: int, fraction: float) -> int:
        """A row that the pass has not asked; any one where all rest."""
        found = np.flatnonzero(self._left(source))
        if not len(found):
            found = np.arange(self._ends[source] - self._starts[source])
        return self._starts[source] + int(found[int(fraction * len(found))])

    def _draw(self, source: int, fraction: float) -> int | None:
        """A row by its weight; None where all that have one are awaited."""
        assert self._weights is not None
        sums = np.cumsum(self._weights[self._starts[source] : self._ends[source]])
        if not sums[-1] > 0:
            return None
        index = int(np.searchsorted(sums, fraction * sums[-1], side="right"))
        return self._starts[source] + min(index, len(sums) - 1)
