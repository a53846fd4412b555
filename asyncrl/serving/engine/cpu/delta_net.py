"""Linear attention (Qwen3-Next) for SGLang on a CPU, in place of its compiled kernels, which need AMX.

Takes the place of what SGLang 0.5.23 imports from sgl_kernel for it, and of Triton's gated norm. Prompts are
computed by the trainer's own kernels.

Shapes: T tokens of B requests; G heads of keys, R value heads of each, K and V their sizes; C channels, W
width of the convolution; slots of the pool of states, one for each request and cached prefix.
"""

import functools

import numpy as np
import torch
from torch.nn.functional import silu

from asyncrl.serving.kernels.delta_rule import (
    ChunkTree,
    gated_delta_rule,
    log_decay,
    make_chunk_tree,
    unit_length,
)


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    return [("sglang.kernels.ops.attention.fla.fused_norm_gate.rms_norm_gated", _gated_norm, "replace")]


def convolve_prompts(
    x, weight, bias, *, activation, conv_states, has_initial_state, cache_indices, query_start_loc, **_
):
    """[C, T] -> [C, T]; leaves the last W - 1 inputs of each request in its slot of [slots, C, W - 1]."""
    _check(bias, activation)
    behind = weight.shape[1] - 1
    slots, edges = cache_indices.long(), query_start_loc.tolist()
    before = conv_states[slots].masked_fill(~has_initial_state[:, None, None], 0)
    parts = []
    for own, begin, end in zip(before.unbind(0), edges, edges[1:], strict=False):
        seen = torch.cat([own.to(x.dtype), x[:, begin:end]], 1)
        parts.append((seen.unfold(1, behind + 1, 1) * weight[:, None]).sum(-1))
        conv_states[slots[len(parts) - 1]] = seen[:, seen.shape[1] - behind :].to(conv_states.dtype)
    return silu(torch.cat(parts, 1))


def convolve_tokens(x, conv_states, weight, bias, activation, *, conv_state_indices):
    """[B, C] -> [B, C] for one token of each request."""
    _check(bias, activation)
    slots = conv_state_indices.long()
    seen = torch.cat([conv_states[slots].to(x.dtype), x[:, :, None]], 2)
    conv_states[slots] = seen[:, :, 1:].to(conv_states.dtype)
    return silu((seen * weight).sum(-1))


def gates(rates, steps, beta, bias):
    """Logarithms of decays and learning rates, [1, T, G R] each in float32."""
    return log_decay(steps, bias, rates)[None], beta.float().sigmoid()[None]


def run_prompts(*, q, k, v, g, beta, initial_state, initial_state_indices, cu_seqlens, **_):
    """[1, T, heads, size] -> [1, T, G R, V]; leaves the state behind each request in its slot of
    [slots, G R, V, K]."""
    slots = initial_state_indices.long()
    tree, last = _tree(tuple(cu_seqlens.tolist()))
    num_groups = q.shape[2]
    states = initial_state[slots].float().mT.unflatten(1, (num_groups, -1))
    value, decay, learned = (x[0].unflatten(1, (num_groups, -1)) for x in (v, g, beta))
    output, found = gated_delta_rule(q[0], k[0], value, decay, learned, tree, states)
    initial_state[slots] = found[last].flatten(1, 2).mT.to(initial_state.dtype)
    return output.flatten(1, 2)[None], None, None


def run_tokens(*, A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, **_):
    """One token of each request: [1, B, heads, size] -> [1, B, G R, V]."""
    slots, ratio = initial_state_indices.long(), v.shape[2] // q.shape[2]
    query, key = (unit_length(x[0]).repeat_interleave(ratio, 1)[..., None] for x in (q, k))
    decay, beta = log_decay(a, dt_bias, A_log).exp(), b.float().sigmoid()
    states = initial_state_source[slots].float() * decay[:, :, None, None]
    change = (v[0].float() - (states @ key).squeeze(-1)) * beta[..., None]
    states = states + change[..., None] @ key.mT
    initial_state_source[slots] = states.to(initial_state_source.dtype)
    output = (states @ query).squeeze(-1) * q.shape[-1] ** -0.5
    return output.to(v.dtype)[None]


@functools.lru_cache(maxsize=2)
def _tree(edges: tuple[int, ...]) -> tuple[ChunkTree, torch.Tensor]:
    """The chunks of prompts, the same in each layer, and the last one of each."""
    rows = [np.arange(begin, end) for begin, end in zip(edges, edges[1:], strict=False)]
    tree = make_chunk_tree(rows, edges[-1], torch.device("cpu"))
    return tree, tree.packed[torch.tensor(edges[1:]) - 1] // tree.places.shape[1]


def _gated_norm(x, g, weight, bias, activation, *, eps, **_):
    """RMSNorm over the last dimension, then times silu of the gate, as transformers rounds it."""
    _check(bias, activation)
    wide = x.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (weight * normed.to(x.dtype) * silu(g.float())).to(x.dtype)


def _check(bias, activation):
    if bias is not None or activation not in ("silu", "swish"):
        raise NotImplementedError(f"linear attention with a bias, or activated by {activation}")
