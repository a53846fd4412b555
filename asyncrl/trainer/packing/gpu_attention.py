"""Attention kernels of a GPU over sequences of any length, one behind the other.

Each is a kernel of `attention_kernels.KERNELS`. Shapes: Q places; H heads, G of them key-value, D head size.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from asyncrl.trainer.packing.limits import UNLIMITED, Limits, Rows, attend_with_sinks


def flash_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    limits: Limits = UNLIMITED,
    sinks: Tensor | None = None,
) -> Tensor:
    """FlashAttention 2 (Dao 2023), its own package."""
    from flash_attn import flash_attn_varlen_func

    if sinks is not None:
        assert limits.cap is None, "no model has soft caps and sinks"
        return _flash_attn_with_sinks(query, key, value, rows, scale, _reach(limits.window), sinks)
    output: Tensor = flash_attn_varlen_func(
        *(query, key, value, *_ends(rows)),
        softmax_scale=scale,
        causal=True,
        window_size=_reach(limits.window),
        softcap=limits.cap or 0.0,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return output


def _flash_attn_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    reach: tuple[int, int],
    of_heads: Tensor,
) -> Tensor:
    from flash_attn.flash_attn_interface import (
        _wrapped_flash_attn_varlen_backward,
        _wrapped_flash_attn_varlen_forward,
    )

    ends = _ends(rows)

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, sums, *_ = _wrapped_flash_attn_varlen_forward(
            *(query, key, value, *ends, 0.0, scale),
            causal=True,
            window_size_left=reach[0],
            window_size_right=reach[1],
        )
        return output, sums.t()

    def backward(
        gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = tuple(torch.empty_like(each) for each in (query, key, value))
        _wrapped_flash_attn_varlen_backward(
            *(gradient.contiguous(), query, key, value, output, sums.t().contiguous(), *found, *ends),
            *(0.0, scale, True, *reach, 0.0, None, torch.are_deterministic_algorithms_enabled()),
        )
        to_query, to_key, to_value = found
        return to_query, to_key, to_value

    return attend_with_sinks(query, key, value, of_heads, forward, backward)


def transformer_engine(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    limits: Limits = UNLIMITED,
    sinks: Tensor | None = None,
) -> Tensor:
    """Transformer Engine's choice of cuDNN and FlashAttention; NVTE_DEBUG=1 makes it say which."""
    assert limits.cap is None and sinks is None
    reach = None if limits.window is None else _reach(limits.window)
    attention = _engine_attention(query.shape[1], key.shape[1], query.shape[2], scale, reach)
    output: Tensor = attention(
        query,
        key,
        value,
        qkv_format="thd",
        attn_mask_type="padding_causal",
        cu_seqlens_q=rows.cumulative,
        cu_seqlens_kv=rows.cumulative,
        max_seqlen_q=rows.longest,
        max_seqlen_kv=rows.longest,
    )
    return output.view(query.shape)


@functools.cache
def _engine_attention(
    heads: int, kv_heads: int, size: int, scale: float, window: tuple[int, int] | None
) -> Any:
    from transformer_engine.pytorch import DotProductAttention

    return DotProductAttention(
        heads,
        size,
        num_gqa_groups=kv_heads,
        attention_dropout=0.0,
        qkv_format="thd",
        attn_mask_type="padding_causal",
        window_size=window,
        softmax_scale=scale,
    )


def torch_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    limits: Limits = UNLIMITED,
    sinks: Tensor | None = None,
) -> Tensor:
    """The FlashAttention 2 that torch is built with, or what `route_flash_attention` put in its place."""
    from torch.nn.attention.varlen import varlen_attn

    assert limits.cap is None
    ends = _ends(rows)
    # A window that reaches back without bound and not forward is the causal mask.
    reach = (_reach(limits.window)[0], 0)
    if sinks is not None:
        return _torch_with_sinks(query, key, value, ends, scale, reach, sinks)
    output = varlen_attn(query, key, value, *ends, scale=scale, window_size=reach, enable_gqa=True)
    assert isinstance(output, Tensor)
    return output


def route_flash_attention(implementation: str | None) -> None:
    """Sets what computes torch's FlashAttention in this process, backward passes included: FA4 (its own
    package), or None for the one torch is built with."""
    current = torch.nn.attention.current_flash_attention_impl()
    if implementation is not None and current != implementation:
        torch.nn.attention.activate_flash_attention_impl(implementation)
    elif implementation is None and current is not None:
        torch.nn.attention.restore_flash_attention_impl()


def _torch_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: tuple[Tensor, Tensor, int, int],
    scale: float,
    reach: tuple[int, int],
    of_heads: Tensor,
) -> Tensor:
    """By the functions that `varlen_attn` is made of."""
    is_causal = reach == (-1, 0)
    named = {"scale": scale, "window_size_left": reach[0], "window_size_right": reach[1]}

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, sums, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *ends, 0.0, is_causal, False, **named
        )
        return output, sums.t()

    def backward(
        gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Of dropout, which there is none of.
        state, unused = query.new_zeros(2, dtype=torch.uint64), query.new_empty(0)
        tensors = (gradient.contiguous(), query, key, value, output, sums.t().contiguous())
        to_query, to_key, to_value = torch.ops.aten._flash_attention_backward(
            *tensors, *ends, 0.0, is_causal, state, unused, **named
        )
        return to_query, to_key, to_value

    return attend_with_sinks(query, key, value, of_heads, forward, backward)


def _reach(window: int | None) -> tuple[int, int]:
    """(tokens back, tokens forward) of a window; -1: all."""
    return (-1, -1) if window is None else (window - 1, 0)


def _ends(rows: Rows) -> tuple[Tensor, Tensor, int, int]:
    """Cumulative lengths and the longest one, of queries and of keys."""
    return rows.cumulative, rows.cumulative, rows.longest, rows.longest
