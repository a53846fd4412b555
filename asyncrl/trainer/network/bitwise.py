"""Megatron's layers by the arithmetic that servers share bit for bit (model.bitwise_agreement).

Only forward passes are shared: the backward pass of a product is the ordinary one, over all rows at once.

Shapes: P packed tokens, K inputs, W outputs, H heads, G of them key-value, D head size.
"""

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor

from asyncrl.model.shape import ModelShape
from asyncrl.serving.kernels import bitwise as kernels
from asyncrl.trainer.packing.attention import PackedAttention, PackedRotary, PackedSequences
from asyncrl.trainer.ranks.megatron import parts_of


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`kernels.linear` of [..., K], with gradient."""
    output: Tensor = _Linear.apply(rows.reshape(-1, rows.shape[-1]), weight, bias)
    return output.view(*rows.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(rows, weight)
        return kernels.linear(rows, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        rows, weight = context.saved_tensors
        of_bias = gradient.sum(0) if context.needs_input_grad[2] else None
        return gradient @ weight, gradient.t() @ rows, of_bias


class BitwiseColumns(ColumnParallelLinear):
    def forward(self, rows: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """[P, 1, K] -> [P, 1, W]."""
        return linear(rows, self.weight, self.bias), None


class BitwiseRows(RowParallelLinear):
    def forward(self, rows: Tensor) -> tuple[Tensor, None]:
        """[P, 1, K] -> [P, 1, W]."""
        return linear(rows, self.weight, self.bias), None


class BitwiseHeads(ColumnParallelLinear):
    """Queries, keys and values; in the product their rows are in the servers' order, all queries first."""

    def forward(self, rows: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """[P, 1, K] -> [P, 1, G * (H / G + 2) * D]."""
        groups, size = self.config.num_query_groups, self.config.kv_channels
        assert groups is not None and size is not None
        each = self.config.num_attention_heads // groups
        bias = None if self.bias is None else _apart(self.bias, groups, each)
        output = linear(rows, _apart(self.weight, groups, each), bias)
        sizes = (groups * each * size, groups * size, groups * size)
        parts = [part.unflatten(-1, (groups, -1)) for part in output.split(sizes, -1)]
        return torch.cat(parts, -1).flatten(-2), None


def _apart(weight: Tensor, groups: int, each: int) -> Tensor:
    """[G * (H / G + 2) * D, ...] in Megatron's order, group after group -> queries, keys, values."""
    grouped = weight.view(groups, each + 2, -1, *weight.shape[1:])
    return torch.cat([part.flatten(0, 2) for part in grouped.split((each, 1, 1), 1)])


class BitwiseNorm(torch.nn.RMSNorm):
    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., K] -> [..., K]."""
        assert self.eps is not None
        return kernels.norm(tokens, self.weight, self.eps)


class BitwiseRotary(PackedRotary):
    """Leaves cosines and sines for `BitwiseAttention`: Megatron itself then rotates nothing."""

    shape: ModelShape

    def forward(self, sequences: PackedSequences, **_: Any) -> None:
        shape = self.shape
        found = kernels.inverse_frequencies(shape.rope_theta, shape.head_size, shape.rope_scaling_factor)
        sequences.turns = kernels.turns(sequences.positions, found)


class BitwiseAttention(PackedAttention):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        /,
        *,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> Tensor:
        """Heads as they leave their product or norm; they are rotated here."""
        assert isinstance(packed_seq_params, PackedSequences) and packed_seq_params.turns is not None
        query, key = (
            kernels.rotate(heads.squeeze(1), *packed_seq_params.turns).unsqueeze(1) for heads in (query, key)
        )
        return super().forward(query, key, value, attention_mask, packed_seq_params=packed_seq_params)


def make_bitwise(layer: TransformerLayerSubmodules) -> None:
    """Replaces the parts of Megatron's own dense layer; those that add residuals stay, they are exact."""
    attention, ffn = parts_of(layer.self_attention), parts_of(layer.mlp)
    attention.linear_qkv, attention.linear_proj = BitwiseHeads, BitwiseRows
    attention.core_attention = BitwiseAttention
    ffn.linear_fc1, ffn.linear_fc2 = BitwiseColumns, BitwiseRows
