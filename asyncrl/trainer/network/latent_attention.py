"""Multi-head latent attention over packed sequences (MLA: DeepSeek-AI 2024, arXiv 2405.04434).

Keys and values of all heads are made of one short vector per token, queries of another or of the hidden
state. The last numbers of each head are rotated; those of keys are the same for all heads. Megatron-core's
own layer rotates by slices per sequence, and knows no sequences that share a prompt. Servers multiply queries
by the matrix of keys instead, which saves cache; here that would cost more products.

Shapes: C tokens of this context-parallel rank, S of them on this tensor rank under sequence parallelism, else
C; H heads of this tensor rank, D head size of queries and keys, R of it rotated, V head size of values.
"""

import functools
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import pad

from asyncrl.model.shape import ModelShape
from asyncrl.trainer.packing.attention import PackedAttention, PackedSequences


def latent_attention(spec: ModuleSpec, shape: ModelShape, norm: Any) -> ModuleSpec:
    """The attention of a layer in place of Megatron's latent one, of the same kinds of matrices."""
    parts = spec.submodules
    matrices = {"columns": parts.linear_kv_up_proj, "rows": parts.linear_proj}
    return ModuleSpec(LatentSelfAttention, params={"shape": shape, "norm": norm, **matrices})


class WholeMatrix(torch.nn.Linear):
    """A matrix that all tensor ranks hold; under sequence parallelism Megatron sums its gradient over them,
    since each has other tokens."""

    def __init__(self, config: TransformerConfig, num_columns: int, num_rows: int) -> None:
        super().__init__(num_columns, num_rows, bias=False, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class CoreAttention(PackedAttention):
    """Heads are rotated before, and values may have another size than keys."""

    def _rotate(self, query: Tensor, key: Tensor, sequences: PackedSequences) -> tuple[Tensor, Tensor]:
        return query, key

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences, scale: float
    ) -> Tensor:
        # Most kernels know one head size alone; zeros change neither scores nor what they weigh.
        size = max(query.shape[-1], value.shape[-1])
        query, key, padded = (pad(each, (0, size - each.shape[-1])) for each in (query, key, value))
        return super()._attend(query, key, padded, sequences, scale)[..., : value.shape[-1]]


class LatentSelfAttention(MegatronModule):
    """Matrices bear the names of Megatron's own layer: down-projections are on all tensor ranks, of
    up-projections each has the rows of its heads."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        *,
        shape: ModelShape,
        norm: Any,
        columns: Any,
        rows: Any,
        **_: Any,
    ) -> None:
        """`norm`, `columns` and `rows` are Megatron's or Transformer Engine's kinds of layers."""
        super().__init__(config=config)
        assert shape.latent is not None
        latent = self.latent = shape.latent
        self.sizes = (shape.head_size - latent.rotated_size, latent.rotated_size)
        """Numbers of a head that are not rotated, and those that are."""
        self.group = parallel_state.get_tensor_model_parallel_group()
        self.num_heads = shape.num_heads // self.group.size()
        cut = functools.partial(
            build_module,
            columns,
            config=config,
            init_method=config.init_method,
            gather_output=False,
            bias=False,
            skip_bias_add=False,
            is_expert=False,
            tp_group=self.group,
        )
        make_norm = functools.partial(build_module, norm, config=config, eps=latent.norm_epsilon)
        queries, hidden = shape.num_heads * shape.head_size, shape.hidden_size
        if latent.query_size is None:
            self.linear_q_proj = cut(hidden, queries)
        else:
            self.linear_q_down_proj = WholeMatrix(config, hidden, latent.query_size)
            self.q_layernorm = make_norm(hidden_size=latent.query_size)
            self.linear_q_up_proj = cut(latent.query_size, queries)
        self.linear_kv_down_proj = WholeMatrix(config, hidden, latent.size + latent.rotated_size)
        self.kv_layernorm = make_norm(hidden_size=latent.size)
        self.linear_kv_up_proj = cut(latent.size, shape.num_heads * (self.sizes[0] + latent.value_size))
        self.core_attention = CoreAttention(config, softmax_scale=shape.attention_scale)
        self.linear_proj = build_module(
            rows,
            shape.num_heads * latent.value_size,
            hidden,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
            is_expert=False,
            tp_group=self.group,
        )

    def forward(
        self, hidden: Tensor, attention_mask: None = None, *, packed_seq_params: PackedSequences, **_: Any
    ) -> tuple[Tensor, None]:
        """[S, 1, hidden] -> [S, 1, hidden], and no bias."""
        rotations = packed_seq_params.layer_rotations
        assert rotations is not None, "LayerRotary comes before the layers"
        plain, turned = self._queries(hidden).unflatten(-1, (self.num_heads, -1)).split(self.sizes, -1)
        query = torch.cat([plain, rotations[0].rotate(turned.squeeze(1)).unsqueeze(1)], -1)
        vector, shared = self.linear_kv_down_proj(hidden).split((self.latent.size, self.sizes[1]), -1)
        heads, _ = self.linear_kv_up_proj(self.kv_layernorm(vector))
        plain, value = heads.unflatten(-1, (self.num_heads, -1)).split(
            (self.sizes[0], self.latent.value_size), -1
        )
        turned = rotations[0].rotate(self._of_all_ranks(shared)).unsqueeze(1)
        key = torch.cat([plain, turned.expand(-1, -1, self.num_heads, -1)], -1)
        attended = self.core_attention(query, key, value, None, packed_seq_params=packed_seq_params)
        output, _ = self.linear_proj(attended)
        return output, None

    def _queries(self, hidden: Tensor) -> Tensor:
        """[S, 1, hidden] -> [C, 1, H * D]."""
        if self.latent.query_size is None:
            queries, _ = self.linear_q_proj(hidden)
        else:
            queries, _ = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden)))
        of_heads: Tensor = queries
        return of_heads

    def _of_all_ranks(self, shared: Tensor) -> Tensor:
        """[S, 1, R] -> [C, 1, R]; the heads of each tensor rank give a part of the gradient."""
        if self.config.sequence_parallel:
            gathered: Tensor = gather_from_sequence_parallel_region(shared, group=self.group)
            return gathered
        copied: Tensor = copy_to_tensor_model_parallel_region(shared, group=self.group)
        return copied
