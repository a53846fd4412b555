"""Layers whose result for one token does not depend on the other tokens of the batch, nor on their number.

A matrix product sums each row in an order that depends on the number of rows, because that decides on the
kernel and its blocks; for one number of rows it depends neither on a row's place nor on the others (He et al.
2025, "Defeating nondeterminism in LLM inference"). So products run in blocks of ROWS rows, the last one
filled up with zeros. An elementwise function such as silu has a second implementation for the numbers that do
not fill a vector register; ROWS rows always do. Sums over a row, and the softmax over the vocabulary, are
computed row by row. All of it holds on one thread.

Server and trainer import these functions: the same ones, so the order of rounding is the same too.

Shapes: N tokens, K inputs, W outputs, H heads, D head size, V vocabulary.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

ROWS = 64
"""Rows of a product: as many as a busy server decodes at once, and 64 x any width fills whole registers."""


def padded(rows: Tensor) -> Tensor:
    """[N, ...] -> [N rounded up to ROWS, ...], filled up with zeros."""
    missing = -len(rows) % ROWS
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows.contiguous()


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [N, K] @ weight [W, K]^T + bias [W] -> [N, W]."""
    blocks = padded(rows).split(ROWS)
    if len(blocks) == 1:
        return functional.linear(blocks[0], weight, bias)[: len(rows)]
    if not blocks:
        return rows.new_empty(0, len(weight))
    return torch.cat([functional.linear(block, weight, bias) for block in blocks])[: len(rows)]


def norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of [..., K] (Zhang and Sennrich 2019), in float32, rounded once."""
    wide = rows.contiguous().float()
    mean = wide.square().sum(-1, keepdim=True) / rows.shape[-1]
    # A square root and a division are exact to the last bit; a reciprocal root need not be.
    return (wide / (mean + epsilon).sqrt() * weight.float()).to(rows.dtype)


def silu(rows: Tensor) -> Tensor:
    """x * sigmoid(x) of [N, ..., K]."""
    return functional.silu(padded(rows))[: len(rows)]


def inverse_frequencies(base: float, size: int, scaling_factor: float | None) -> Tensor:
    """[D / 2] float32 angles per position of a head of `size`; Llama 3's scaling by `scaling_factor`.

    Its other numbers are those of Llama 3.1 (asyncrl/model/folder.py refuses models with others).
    """
    found = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling_factor is not None:
        low, high, length = 1.0, 4.0, 8192
        turns = length * found / (2 * math.pi)
        share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        found = found * share + found / scaling_factor * (1 - share)
    return found.float()


def turns(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, D / 2] float32 of positions [N]."""
    angles = padded(positions).float()[:, None] * frequencies
    return angles.cos()[: len(positions), None], angles.sin()[: len(positions), None]


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[N, H, D], its first half turned against its second (Su et al. 2021), in float32, rounded once."""
    first, second = heads.float().chunk(2, -1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(turned, -1).to(heads.dtype)


def token_logprobs(logits: Tensor, temperatures: Tensor, tokens: Tensor) -> Tensor:
    """[N] float32 natural log-probs of tokens [N] under softmax(logits [N, V] / temperatures [N, 1])."""
    everything = torch.log_softmax(logits.float() / temperatures, -1)
    return everything.gather(1, tokens[:, None].long()).squeeze(1)
