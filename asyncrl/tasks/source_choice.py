"""Sources of data: which gives the row of each group, where sources have weights, rows are chosen, or both;
and how many held-out tasks are of each.

The source comes first: by its weight, a pure function of (seed, position), or by its share of groups with a
signal (data.mixture). Within it the row is the next of the source's own epochs, or chosen (data.selection).
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from asyncrl.data.rows import grader_of, heldout_rows
from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe, Source
from asyncrl.records import PolicyVersion, RowVisit, Task
from asyncrl.tasks.order import Epochs, TaskTable
from asyncrl.tasks.pass_rates import SignalShares, make_shares
from asyncrl.tasks.selection import RowSelection, make_selection
from asyncrl.tasks.task_list import ReadingStage, TaskMaker, template_of, use_of
from asyncrl.tasks.verifier_cache import VerifierCache

BLOCK = 1000
"""Positions; a source's share of them is rounded to one."""


class Mixture:
    """Which source gives the task at a position: a pure function of (weights, seed, position), so that the
    number of admitted groups stays the whole cursor. In each block of positions every source has its share of
    the places, in a seeded order.

    `weights` are relative. Raises ValueError for one that is too small to get a place in a block.
    """

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        self._places = _shares(weights)
        self._seed = seed
        self._block = lru_cache(maxsize=2)(self._make_block)

    def at(self, position: int) -> tuple[int, int]:
        """(source, how many of its tasks came before) at `position`."""
        block, offset = divmod(position, BLOCK)
        source, earlier = self._block(block)[offset]
        return source, block * self._places[source] + earlier

    def _make_block(self, block: int) -> list[tuple[int, int]]:
        sources = [source for source, count in enumerate(self._places) for _ in range(count)]
        random.Random(f"{self._seed}-mixture-{block}").shuffle(sources)
        counts = [0] * len(self._places)
        places = []
        for source in sources:
            places.append((source, counts[source]))
            counts[source] += 1
        return places


def _shares(weights: Sequence[float]) -> list[int]:
    """Places of each source in a block, by largest remainder: together BLOCK."""
    total = sum(weights)
    exact = [BLOCK * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: shares[i] - exact[i])
    for source in by_remainder[: BLOCK - sum(shares)]:
        shares[source] += 1
    for weight, share in zip(weights, shares, strict=True):
        if share == 0:
            raise ValueError(f"weight {weight:g} of {total:g} is less than 1 in {2 * BLOCK} tasks")
    return shares


def fair_shares(sizes: Sequence[int], weights: Sequence[float], limit: int) -> list[int]:
    """How many of each source's tasks are taken where `limit` of all of them are: by weight, whole numbers.

    A source with fewer than its share gives all, and the others share the rest by their weights.
    """
    shares = [0] * len(sizes)
    open_sources = [source for source, size in enumerate(sizes) if size]
    left = min(limit, sum(sizes))
    while open_sources:
        total = sum(weights[source] for source in open_sources)
        full = [s for s in open_sources if sizes[s] <= left * weights[s] / total]
        if not full:
            break
        for source in full:
            shares[source] = sizes[source]
        left -= sum(sizes[source] for source in full)
        open_sources = [source for source in open_sources if source not in full]
    exact = {source: left * weights[source] / total for source in open_sources}
    for source in open_sources:
        shares[source] = int(exact[source])
    by_remainder = sorted(open_sources, key=lambda source: int(exact[source]) - exact[source])
    for source in by_remainder[: left - sum(shares[source] for source in open_sources)]:
        shares[source] += 1
    return shares


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


def read_heldout_tasks(
    recipe: Recipe,
    codec: TextCodec,
    verifiers: VerifierCache,
    context_tokens: int,
    stage: ReadingStage | None = None,
) -> list[Task]:
    """At most evaluation.num_tasks held-out tasks; none without data.heldout.

    Of each source its first ones, as many of one as of another or as their weights say; what a short source
    leaves free, the others fill. Raises InputError, also where a source would get no task.
    """
    maker = TaskMaker("data.heldout", recipe.data, codec, verifiers, context_tokens, template_of(recipe))
    maker.stage = stage
    sources = recipe.data.heldout_sources()
    grader = grader_of(recipe.evaluation)
    rows = heldout_rows(recipe.data, recipe.verifying, use_of(recipe, verifiers), grader)
    tasks = maker.make(rows, sources)
    return first_tasks(maker, tasks, sources, recipe.evaluation.num_tasks, "evaluation.num_tasks")


def first_tasks(
    maker: TaskMaker, tasks: TaskTable, sources: Sequence[Source], limit: int, limit_key: str
) -> list[Task]:
    """At most `limit` of the `tasks` that `maker` made of `sources`: the first of each, by their weights.

    Raises InputError where a source would get no task.
    """
    sizes = [maker.findings.num_made[index] for index in range(len(sources))]
    shares = fair_shares(sizes, [source.weight or 1.0 for source in sources], limit)
    if 0 in shares:
        starved = sources[shares.index(0)].title()
        raise InputError(
            f"{limit_key} is {limit}, which leaves no task for {starved} of {maker.key}. "
            f"Raise {limit_key}, or the weight of that source."
        )
    chosen: list[Task] = []
    start = 0
    for size, share in zip(sizes, shares, strict=True):
        chosen += tasks[start : start + share]
        start += size
    return chosen
