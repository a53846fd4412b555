"""Attention on a CPU: masked and in 16 bits by batched products, or by the arithmetic that servers share.

torch's kernel makes a product per sequence and head. In its backward pass oneDNN looks each of them up by a
key of its shapes and options, which costs more than the product. Here all heads and blocks of a slice are one
product. Scores and softmax are float32, as in torch's kernel; probabilities are kept in 16 bits, so only
short blocks come here (LONGEST).

Shapes: B blocks, each a sequence or several, L places each, Q places of all; H heads, G of them key-value, D
head size.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.serving.kernels.bitwise import Attention
from asyncrl.trainer.packing.limits import attend_with_sinks
from asyncrl.trainer.packing.prefix_tree import num_common

LONGEST = 512
"""Places of a block: its probabilities take 2 x H x L bytes per token and layer, and half are masked."""
SCORES_AT_ONCE = 2**20
"""Scores in a slice: in float32 they stay in the processor's cache."""


def is_for(query: Tensor) -> bool:
    """Whether `attend` is the faster way for queries [B, H, L, D]."""
    return query.device.type == "cpu" and query.dtype.itemsize == 2 and query.shape[2] <= LONGEST


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, mask: Tensor | None = None
) -> Tensor:
    """[B, H, L, D], [B, G, L, D], [B, G, L, D] -> [B, H, L, D]; `scale` is 1 / sqrt(D) by default.

    `mask` [B, L, L] says which places each looks at; by default all before it and itself."""
    output: Tensor = _Attention.apply(query, key, value, mask, scale or 1 / math.sqrt(query.shape[-1]))
    return output


def attend_to_sinks(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, of_heads: Tensor
) -> Tensor:
    """`attend` in any type of numbers, with sinks `of_heads` [H], by the kernel of torch's attention."""
    copies = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(copies, dim=1) for each in (key, value))
    added = None
    if mask is not None:
        added = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -math.inf)[:, None]
    named = {"attn_mask": added, "scale": scale}

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, mask is None, **named
        )
        return output, sums

    def backward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        to_query, to_key, to_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, 0.0, mask is None, **named
        )
        return to_query, to_key, to_value

    return attend_with_sinks(query, key, value, of_heads[:, None], forward, backward)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        batch, heads, length, size = query.shape
        # The heads that share a key-value head are its queries: no copy of keys.
        queries = query.reshape(batch * key.shape[1], -1, size)
        keys, values = key.reshape(-1, length, size), value.reshape(-1, length, size)
        copies = heads // key.shape[1]
        causal = _bias(torch.ones(1, length, length, dtype=torch.bool).tril_(), copies)
        of_heads = None if mask is None else mask.repeat_interleave(key.shape[1], 0)
        probabilities = query.new_empty(*queries.shape[:2], length)
        output = torch.empty_like(queries)
        for some in _slices(probabilities):
            bias = causal if of_heads is None else _bias(of_heads[some], copies)
            scores = torch.baddbmm(bias, queries[some].float(), keys[some].float().mT, alpha=scale)
            torch.softmax(scores, -1, out=scores)
            probabilities[some] = scores
            torch.bmm(probabilities[some], values[some], out=output[some])
        context.save_for_backward(queries, keys, values, probabilities)
        context.shapes = query.shape, key.shape
        context.scale = scale
        return output.view(query.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        queries, keys, values, probabilities = context.saved_tensors
        gradients = gradient.reshape(queries.shape)
        to_queries, to_keys, to_values = (torch.empty_like(x) for x in (queries, keys, values))
        for some in _slices(probabilities):
            kept = probabilities[some]
            torch.bmm(kept.mT, gradients[some], out=to_values[some])
            slopes = torch.bmm(gradients[some], values[some].mT).float()
            slopes = torch._softmax_backward_data(slopes, kept.float(), -1, torch.float32)
            slopes = slopes.mul_(context.scale).to(kept.dtype)
            torch.bmm(slopes, keys[some], out=to_queries[some])
            torch.bmm(slopes.mT, queries[some], out=to_keys[some])
        of_queries, of_keys = context.shapes
        return to_queries.view(of_queries), to_keys.view(of_keys), to_values.view(of_keys), None, None


def _bias(looks: Tensor, copies: int) -> Tensor:
    """[N, L, L] bool -> [N, copies x L, L] float32: 0 where a place looks, else minus infinity."""
    return torch.zeros(looks.shape).masked_fill_(~looks, -math.inf).repeat(1, copies, 1)


def _slices(scores: Tensor) -> list[slice]:
    """Slices of the first dimension of [N, Q, K]."""
    size = max(1, SCORES_AT_ONCE // scores[0].numel())
    return [slice(a, a + size) for a in range(0, len(scores), size)]


Buckets = tuple[tuple[int, int], ...]
"""(B, L), as `Rows` has them."""
Ordinary = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_bitwise(
    query: Tensor, key: Tensor, value: Tensor, buckets: Buckets, scale: float, ordinary: Ordinary
) -> Tensor:
    """[Q, H, D], [Q, G, D], [Q, G, D] -> [Q, H, D]; the gradient is that of `ordinary`, the same function in
    another order of sums."""
    output: Tensor = _BitwiseAttention.apply(query, key, value, buckets, scale, ordinary)
    return output


class _BitwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        buckets: Buckets,
        scale: float,
        ordinary: Ordinary,
    ) -> Tensor:
        context.save_for_backward(query, key, value)
        context.ordinary = ordinary
        return _attend_in_order(query, key, value, buckets, scale)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [saved.detach().requires_grad_() for saved in context.saved_tensors]
        with torch.enable_grad():
            output = context.ordinary(*leaves)
        return *torch.autograd.grad(output, leaves, gradient), None, None, None


@functools.lru_cache(maxsize=64)
def _attention(count: int, length: int, num_heads: int, num_kv_heads: int) -> Attention:
    """The same for all layers."""
    return Attention(torch.arange(1, length + 1).expand(count, length), num_heads, num_kv_heads)


def _attend_in_order(query: Tensor, key: Tensor, value: Tensor, buckets: Buckets, scale: float) -> Tensor:
    sizes = [count * length for count, length in buckets]
    outputs = []
    for (count, length), *parts in zip(
        buckets, *(each.split(sizes) for each in (query, key, value)), strict=True
    ):
        attention = _attention(count, length, query.shape[1], key.shape[1])
        queries, keys, values = (part.unflatten(0, (count, length)) for part in parts)
        missing = (0, 0, 0, 0, 0, attention.num_keys - length)
        keys, values = (torch.nn.functional.pad(part, missing) for part in (keys, values))
        outputs.append(attention(queries, keys, values, scale).flatten(0, 1))
    return torch.cat(outputs)


@dataclass(frozen=True, slots=True)
class Block:
    """A unit of attention on a CPU: one sequence, or neighbors that share most of their tokens.

    Each sequence laid out whole repeats a prompt for every response to it. Where responses are short that is
    most of the work: a block holds shared tokens once, and a mask says at which of its L places each looks.
    """

    tokens: np.ndarray
    """[L] int64, the packed token at each place."""
    mask: np.ndarray | None = None
    """[L, L] bool, the places that each looks at; None where it is all before it and itself."""


def make_blocks(rows: list[np.ndarray]) -> list[Block]:
    """Blocks of sequences, of which `rows` are the packed tokens; in their order, which has like beside like.

    A sequence joins the block before it where their scores together are no more than apart, L x L each.
    """
    blocks, members, size = [], [(rows[0], 0)], len(rows[0])
    for before, row in pairwise(rows):
        common = num_common(before, row)
        joint = size + len(row) - common
        if joint**2 <= size**2 + len(row) ** 2 and joint <= LONGEST:
            members.append((row, common))
            size = joint
        else:
            blocks.append(_block(members, size))
            members, size = [(row, 0)], len(row)
    return [*blocks, _block(members, size)]


def _block(members: list[tuple[np.ndarray, int]], size: int) -> Block:
    """Lays sequences out as one block; each comes with the number of tokens it shares with the one before."""
    if len(members) == 1:
        return Block(members[0][0])
    tokens, mask = np.empty(size, np.int64), np.zeros((size, size), np.bool_)
    end, places = 0, np.empty(0, np.int64)
    for row, common in members:
        places = np.concatenate([places[:common], np.arange(end, end + len(row) - common)])
        own = places[common:]
        tokens[own] = row[common:]
        mask[np.ix_(own, places)] = np.tri(len(row), dtype=np.bool_)[common:]
        end += len(own)
    return Block(tokens, mask)
