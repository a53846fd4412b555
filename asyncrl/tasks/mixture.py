"""Which source gives the task at a position, where data comes from several with weights.

A pure function of (weights, seed, position), as the order within a source is: the number of admitted groups
stays the whole cursor. Positions are cut into blocks; in each, every source has its share of the places, in a
seeded order.
"""

import random
from collections.abc import Sequence
from functools import lru_cache

BLOCK = 1000
"""Positions; a source's share of them is rounded to one."""


class Mixture:
    """`weights` are relative. Raises ValueError for one that is too small to get a place in a block."""

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
