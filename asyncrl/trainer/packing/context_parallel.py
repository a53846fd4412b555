"""Ranks of a context-parallel group, which hold consecutive tokens of a pack each.

They exchange tokens for heads before attention and back after it (DeepSpeed-Ulysses: Jacobs et al. 2023), and
fill in each other's outputs.

Shapes: P packed tokens, C of them on this rank; H heads, D head size; T response tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

Send = Callable[[Tensor, dist.ProcessGroup], Tensor]
"""(this rank's part, group) -> what the ranks of the group have for this one."""


def own_tokens(tokens: Tensor, *, of_tensor_rank: bool = False) -> Tensor:
    """[P, ...] -> [C, ...], those of this context-parallel rank; of these the ones of this tensor rank too
    (sequence parallelism)."""
    groups = [parallel_state.get_context_parallel_group()]
    if of_tensor_rank:
        groups.append(parallel_state.get_tensor_model_parallel_group())
    for group in groups:
        tokens = tokens.chunk(group.size())[group.rank()] if group.size() > 1 else tokens
    return tokens


def tokens_for_heads(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[C, H, D] on every rank of `group` -> [P, H / ranks, D]: all tokens, this rank's heads."""
    heads: Tensor = _Exchange.apply(tokens, group, _send_tokens, _send_heads)
    return heads


def heads_for_tokens(heads: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[P, H / ranks, D] on every rank of `group` -> [C, H, D]: this rank's tokens, all heads."""
    tokens: Tensor = _Exchange.apply(heads, group, _send_heads, _send_tokens)
    return tokens


class _Exchange(torch.autograd.Function):
    """`send` of a tensor, and in the backward pass `send_back` of its gradient."""

    @staticmethod
    def forward(
        context: Any, tensor: Tensor, group: dist.ProcessGroup, send: Send, send_back: Send
    ) -> Tensor:
        context.group, context.send_back = group, send_back
        return send(tensor, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return context.send_back(gradient, context.group), None, None, None


def _send_tokens(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = tokens.unflatten(1, (group.size(), -1)).transpose(0, 1).contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received.flatten(0, 1)


def _send_heads(heads: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(heads, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, heads.contiguous(), group=group)
    parts: Tensor = received.unflatten(0, (group.size(), -1))
    return parts.transpose(0, 1).flatten(1, 2)


def own_predicting(predicting: Tensor, num_tokens: int) -> tuple[Tensor | None, Tensor]:
    """(which of `predicting` this context rank computes, None for all; their places in its `num_tokens`)."""
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return None, predicting
    first = group.rank() * num_tokens
    own = ((predicting >= first) & (predicting < first + num_tokens)).nonzero().squeeze(1)
    return own, predicting[own] - first


def fill_in(values: Tensor, own: Tensor, size: int) -> Tensor:
    """Each context rank's columns `own` of [K, size] -> all of them on every rank."""
    filled: Tensor = _FillIn.apply(values, own, size, parallel_state.get_context_parallel_group())
    return filled


class _FillIn(torch.autograd.Function):
    """Columns of ranks that own a part of T each -> all columns [K, T] on every rank.

    Every rank then computes the whole loss, sequence terms included, and each token's gradient reaches the
    one rank that owns it.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, own: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
        context.save_for_backward(own)
        everything = values.new_zeros(len(values), size).index_copy_(1, own, values)
        dist.all_reduce(everything, group=group)
        return everything

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient.index_select(1, context.saved_tensors[0]), None, None, None
