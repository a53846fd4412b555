"""Packed sequences as a tree of chunks, for layers whose state runs from token to token.

Such a state cannot be read at any place, as keys can: it is carried from chunk to chunk. A chunk ends where
sequences part, so that each of those behind it begins with its state. What sequences share is computed once.

Shapes: P packed tokens, N chunks of S places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

LARGEST_CHUNK = 64
"""Tokens; as in the kernels of flash-linear-attention."""


@dataclass(frozen=True, slots=True)
class ChunkTree:
    before: Tensor
    """[P + 1] int64, the token before each in its sequence; P at its beginning, and of P itself."""
    places: Tensor
    """[N, S] int64, the tokens of each chunk, then P. Chunks with as many others before them in their
    sequences follow each other: first all those with none."""
    packed: Tensor
    """[P] int64, the place of each token among the N x S."""
    levels: tuple[tuple[int, Tensor | None], ...]
    """(number of chunks, index of the one before each among those of the level before; None on the first
    level, and where each has the one at its own place before it)."""


def make_chunk_tree(rows: Sequence[np.ndarray], num_tokens: int, device: torch.device) -> ChunkTree:
    """The chunks of packed tokens of which `rows[i]` make up sequence i. Rows may share their first tokens; a
    token comes after those before it."""
    before = np.full(num_tokens + 1, num_tokens)
    for row in rows:
        before[row[1:]] = row[:-1]
    begins, ends = _cut(before[:-1])
    chunk_of = np.repeat(np.arange(len(begins)), ends - begins)
    # The last entry stands for no chunk.
    parents = np.append(chunk_of, -1)[before[begins]]
    depths = np.zeros(len(begins), np.int64)
    for chunk, parent in enumerate(parents):
        if parent >= 0:
            depths[chunk] = depths[parent] + 1
    order = np.argsort(depths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    size = int((ends - begins).max())
    places = begins[order, None] + np.arange(size)
    places[places >= ends[order, None]] = num_tokens
    packed = rank[chunk_of] * size + np.arange(num_tokens) - begins[chunk_of]
    return ChunkTree(
        before=torch.from_numpy(before).to(device),
        places=torch.from_numpy(places).to(device),
        packed=torch.from_numpy(packed).to(device),
        levels=_levels(depths, order, rank, parents, device),
    )


def _cut(before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where chunks begin and end: stretches of the pack, at most LARGEST_CHUNK long, that sequences pass as a
    whole."""
    num_tokens = len(before)
    is_begin = before != np.arange(-1, num_tokens - 1)
    is_begin[0] = True
    forks = before[is_begin]
    is_begin[forks[forks < num_tokens - 1] + 1] = True
    edges = [*np.flatnonzero(is_begin).tolist(), num_tokens]
    begins = np.concatenate([np.arange(a, b, LARGEST_CHUNK) for a, b in pairwise(edges)])
    return begins, np.append(begins[1:], num_tokens)


def _levels(
    depths: np.ndarray, order: np.ndarray, rank: np.ndarray, parents: np.ndarray, device: torch.device
) -> tuple[tuple[int, Tensor | None], ...]:
    counts = np.bincount(depths).tolist()
    levels: list[tuple[int, Tensor | None]] = []
    end = begin = 0
    for count in counts:
        previous, begin, end = begin, end, end + count
        own = rank[parents[order[begin:end]]] - previous
        is_forked = bool(levels) and not np.array_equal(own, np.arange(levels[-1][0]))
        levels.append((count, torch.from_numpy(own).to(device) if is_forked else None))
    return tuple(levels)
