"""Attention with soft-capped scores on a CPU: c tanh(score / c) (Gemma 2: Riviere et al. 2024).

torch has no kernel for it outside of a GPU's compiler. All scores of a bucket are stored, in float32.

Shapes: B sequences or blocks, L places each; H heads, G of them key-value, D head size.
"""

import math

import torch
from torch import Tensor


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, cap: float
) -> Tensor:
    """[B, H, L, D], [B, G, L, D], [B, G, L, D] -> [B, H, L, D].

    `mask` [B, L, L] says which places each looks at; by default all before it and itself."""
    copies = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(copies, dim=1) for each in (key, value))
    scores = query.float() @ key.float().mT * scale
    scores = cap * torch.tanh(scores / cap)
    length = query.shape[2]
    looks = torch.ones(1, length, length, dtype=torch.bool).tril_() if mask is None else mask
    weights = scores.masked_fill(~looks[:, None], -math.inf).softmax(-1)
    return weights.to(value.dtype) @ value
