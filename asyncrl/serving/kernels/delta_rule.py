"""The gated delta rule and the causal convolution before it, over a tree of chunks, in torch.

    S_t = exp(g_t) S_(t-1) (I - b_t k_t k_t^T) + b_t v_t k_t^T,   o_t = S_t q_t

(Yang et al. 2024, arXiv 2412.06464), a chunk at a time: inside it by one triangular system, as transformers'
`torch_chunk_gated_delta_rule`; its state goes to the chunks behind it. In float32.

Shapes: P packed tokens, N chunks of S places; G heads of keys, R value heads of each, K and V their sizes; C
channels, W width of the convolution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

LARGEST_CHUNK = 64
"""Tokens; as in the kernels of flash-linear-attention."""


@dataclass(frozen=True, slots=True)
class ChunkTree:
    """Packed sequences as a tree of chunks, for layers whose state is carried from chunk to chunk: it cannot
    be read at any place, as keys can. A chunk ends where sequences part, so that each of those behind it
    begins with its state. What sequences share is computed once."""

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


NORM_EPSILON = 1e-6


def causal_convolution(tokens: Tensor, weight: Tensor, tree: ChunkTree) -> Tensor:
    """[P, C], [C, 1, W] -> [P, C]: a sum over a token and those before it in its sequence, per channel."""
    padded = pad(tokens.float(), (0, 0, 0, 1))
    total, places = None, None
    for taps in weight.squeeze(1).float().unbind(1)[::-1]:
        seen = padded[:-1] if places is None else padded.index_select(0, places)
        total = seen * taps if total is None else total + seen * taps
        places = tree.before[:-1] if places is None else tree.before.index_select(0, places)
    assert total is not None, "a convolution is one token wide at least"
    return total.to(tokens.dtype)


def log_decay(steps: Tensor, bias: Tensor, log_rate: Tensor) -> Tensor:
    """g [P, heads] in float32 of the token's numbers `steps` and each head's `dt_bias` and `A_log`."""
    return -log_rate.float().exp() * softplus(steps.float() + bias)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    tree: ChunkTree,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """[P, G, K], [P, G, K], [P, G, R, V], g [P, G, R], b [P, G, R] -> [P, G, R, V].

    States are 0 before the first tokens, or `initial`, [chunks of the first level, G, R, K, V] in float32:
    then it gives those behind all chunks too, [N, G, R, K, V].
    """
    query, key = unit_length(query) * query.shape[-1] ** -0.5, unit_length(key)
    q, k = (_in_chunks(x, tree).permute(0, 2, 1, 3)[:, :, None] for x in (query, key))
    v = _in_chunks(value, tree).permute(0, 2, 3, 1, 4)
    g, b = (_in_chunks(x, tree).permute(0, 2, 3, 1) for x in (decay, beta))
    total = g.cumsum(-1)
    is_later = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(is_later, -math.inf).exp()
    from_start = total.exp()[..., None]
    sizes = [value.shape[-1], key.shape[-1]]
    right = torch.cat([v * b[..., None], k * (b[..., None] * from_start)], -1)
    # The diagonal counts as ones, what is above it is not read.
    system = (k @ k.mT) * between * b[..., None]
    new, read = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).split(sizes, -1)
    output, states = _scan(
        within=(q @ k.mT) * between,
        query=q * from_start,
        key=k * (total[..., -1:] - total).exp()[..., None],
        new=new,
        read=read,
        kept=from_start[..., -1:, :],
        tree=tree,
        initial=initial,
    )
    flat = output.permute(0, 3, 1, 2, 4).flatten(0, 1)
    return flat.index_select(0, tree.packed).to(value.dtype), states


def unit_length(heads: Tensor) -> Tensor:
    """[..., K] -> [..., K] of length 1, in float32."""
    wide = heads.float()
    unit: Tensor = wide * (wide.square().sum(-1, keepdim=True) + NORM_EPSILON).rsqrt()
    return unit


def _in_chunks(tokens: Tensor, tree: ChunkTree) -> Tensor:
    """[P, ...] -> [N, S, ...] in float32; zeros, where a chunk has no token, leave the state as it is."""
    padded = torch.cat([tokens.float(), tokens.new_zeros(1, *tokens.shape[1:], dtype=torch.float32)])
    chunks: Tensor = padded.index_select(0, tree.places.flatten()).unflatten(0, tree.places.shape)
    return chunks


def _scan(
    *,
    within: Tensor,
    query: Tensor,
    key: Tensor,
    new: Tensor,
    read: Tensor,
    kept: Tensor,
    tree: ChunkTree,
    initial: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """[N, G, R, S, V]: level after level of the tree, each chunk from the state of the one before it."""
    outputs, states = list[Tensor](), list[Tensor]()
    state, begin = initial, 0
    for level, (count, parents) in enumerate(tree.levels):
        own = slice(begin, begin + count)
        begin += count
        values = new[own]
        if state is None:
            outputs.append(within[own] @ values)
        else:
            state = state if parents is None else state.index_select(0, parents)
            values = values - read[own] @ state
            outputs.append(query[own] @ state + within[own] @ values)
        if level + 1 < len(tree.levels) or initial is not None:
            added = key[own].mT @ values
            state = added if state is None else state * kept[own] + added
            if initial is not None:
                states.append(state)
    return torch.cat(outputs), torch.cat(states) if initial is not None else None
