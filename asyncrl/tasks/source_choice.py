"""The row of each group where sources have weights, rows are chosen, or both.

The source comes first: by its weight, a pure function of (seed, position), or by its share of groups with a
signal (data.mixture). Within it the row is the next of the source's own epochs, or chosen (data.selection).
"""

from bisect import bisect_right
from collections.abc import Sequence

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion, RowVisit
from asyncrl.tasks.order import Epochs
from asyncrl.tasks.pass_rates import SignalShares, make_shares
from asyncrl.tasks.selection import RowSelection, make_selection
from asyncrl.tasks.source_choice import Mixture


class SourceChoice:
    """`RowChooser` for sources that stand one after the other."""

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int,
        is_shuffled: bool,
        selection: RowSelection | None = None,
        is_selected: bool = False,
        shares: SignalShares | None = None,
    ) -> None:
        """`sizes`: rows of each source. `selection` keeps the record of rows; where `is_selected` it chooses
        them, too. `shares` choose the source in place of `weights`. Raises InputError for a weight that is
        too small."""
        try:
            self._mixture = Mixture(weights, seed=seed)
        except ValueError as error:
            raise InputError(f"data.train has a source whose {error}. Raise its weight.") from error
        self._starts = [sum(sizes[:source]) for source in range(len(sizes))]
        self._epochs = [
            Epochs(size, seed=seed, is_shuffled=is_shuffled, source=source)
            for source, size in enumerate(sizes)
        ]
        self.selection = selection
        """None where rows need no record."""
        self._is_selected = is_selected
        self._shares = shares
        self.has_memory = selection is not None or shares is not None

    def choose(self, position: int, version: PolicyVersion) -> int:
        if self._shares is None:
            source, index = self._mixture.at(position)
        else:
            source = self._shares.choose(version)
            index = self._shares.num_chosen[source] - 1
        if self.selection is not None and self._is_selected:
            return self.selection.choose(source, position, version)
        if self.selection is not None:
            self.selection.learn(version)
        return self._starts[source] + self._epochs[source].at(index)

    def admitted(self, row: int | None, version: PolicyVersion) -> None:
        if self.selection is not None and not self._is_selected:
            self.selection.learn(version)
        elif self.selection is not None and row is not None:
            self.selection.admitted(row, version)
        if self._shares is not None and row is not None:
            self._shares.admitted(self._source_of(row), version)

    def visited(self, row: int, visit: RowVisit) -> None:
        if self.selection is not None:
            self.selection.visited(row, visit)
        if self._shares is not None:
            self._shares.visited(self._source_of(row), visit)

    def _source_of(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1


def make_source_choice(recipe: Recipe, sizes: Sequence[int], levels: Sequence[float]) -> SourceChoice | None:
    """None where rows are asked epoch after epoch. `sizes`: rows of each source; `levels`: [R] of
    data.selection.column. Raises InputError for a weight that is too small."""
    is_selected = recipe.data.selection.by != "uniform"
    keeps_record = is_selected or recipe.rollout.pilot_samples is not None
    sources = recipe.data.train_sources()
    is_weighted = sources[0].weight is not None
    if not is_weighted and not keeps_record:
        return None
    weights = [source.weight or 1.0 for source in sources] if is_weighted else [1.0]
    sizes = sizes if is_weighted else [sum(sizes)]
    return SourceChoice(
        sizes,
        weights,
        seed=recipe.seed,
        is_shuffled=recipe.data.is_shuffled,
        selection=make_selection(recipe, levels, sizes) if keeps_record else None,
        is_selected=is_selected,
        shares=make_shares(recipe, weights) if recipe.data.mixture.rebalance == "signal" else None,
    )
