"""The attention that servers share bit for bit (serving/kernels), over packed sequences.

Shapes: Q places, H heads, G of them key-value, D head size; in a bucket B sequences, L places each.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asyncrl.serving.kernels.attention import Attention

Buckets = tuple[tuple[int, int], ...]
"""(B, L), as `Rows` has them."""
Ordinary = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(
    query: Tensor, key: Tensor, value: Tensor, buckets: Buckets, scale: float, ordinary: Ordinary
) -> Tensor:
    """[Q, H, D], [Q, G, D], [Q, G, D] -> [Q, H, D]; the gradient is that of `ordinary`, the same function in
    another order of sums."""
    output: Tensor = _Attention.apply(query, key, value, buckets, scale, ordinary)
    return output


class _Attention(torch.autograd.Function):
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
        return _attend(query, key, value, buckets, scale)

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


def _attend(query: Tensor, key: Tensor, value: Tensor, buckets: Buckets, scale: float) -> Tensor:
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
