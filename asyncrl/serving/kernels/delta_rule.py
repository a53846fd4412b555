"""The gated delta rule and the causal convolution before it, over a tree of chunks, in torch.

    S_t = exp(g_t) S_(t-1) (I - b_t k_t k_t^T) + b_t v_t k_t^T,   o_t = S_t q_t

(Yang et al. 2024, arXiv 2412.06464), a chunk at a time: inside it by one triangular system, as transformers'
`torch_chunk_gated_delta_rule`; its state goes to the chunks behind it. In float32.

Shapes: P packed tokens, N chunks of S places; G heads of keys, R value heads of each, K and V their sizes; C
channels, W width of the convolution.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from asyncrl.serving.kernels.chunk_tree import ChunkTree

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
