"""Linear attention as a layer of Megatron's, and attention with an output gate (Qwen3-Next).

Tensor ranks have some of the heads each. Rows of matrices lie head of keys by head of keys, as in Hugging
Face's folders; so do here, unlike there, the channels of the convolution: a rank's part is one stretch of
rows, in checkpoints too.

Shapes: C tokens of this rank (sequence parallelism), P of all; G heads of keys and values of this tensor
rank, R value heads or query heads of each; H hidden size, D head size.
"""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import (
    ensure_metadata_has_dp_cp_group,
    make_sharded_tensors_for_checkpoint,
    sharded_state_dict_default,
)
from torch import Tensor
from torch.nn.functional import silu

from asyncrl.model.shape import DeltaNet, ModelShape
from asyncrl.serving.kernels.delta_rule import causal_convolution, gated_delta_rule, log_decay
from asyncrl.trainer.packing.attention import PackedSequences

CUT = ("conv_weight", "dt_bias", "A_log")
"""Parameters of which each tensor rank has some rows."""


class LinearAttention(MegatronModule):
    """The gated delta net of a layer, in place of its self-attention."""

    def __init__(self, config: TransformerConfig, *, shape: ModelShape, **_: Any) -> None:
        super().__init__(config)
        assert shape.delta_net is not None, shape.architecture
        self.net = net = shape.delta_net
        self.group = parallel_state.get_tensor_model_parallel_group()
        ranks = self.group.size()
        self.num_groups = net.num_key_heads // ranks
        self.epsilon = shape.norm_epsilon
        self.in_proj_qkvz = self._columns(2 * (net.key_size + net.value_size))
        self.in_proj_ba = self._columns(2 * net.num_value_heads)
        self.out_proj = RowParallelLinear(
            net.value_size,
            shape.hidden_size,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
            is_expert=False,
            tp_group=self.group,
        )
        width = config.init_method(torch.empty(net.num_channels() // ranks, 1, net.conv_width))
        self.conv_weight = torch.nn.Parameter(width)
        self.dt_bias = torch.nn.Parameter(torch.ones(net.num_value_heads // ranks))
        self.A_log = torch.nn.Parameter(torch.zeros(net.num_value_heads // ranks))
        self.norm_weight = torch.nn.Parameter(torch.ones(net.value_head_size))
        for name in CUT:
            set_tensor_model_parallel_attributes(getattr(self, name), True, 0, 1)

    def forward(
        self, hidden: Tensor, attention_mask: None = None, *, packed_seq_params: PackedSequences, **_: Any
    ) -> tuple[Tensor, None]:
        """[C, 1, H] -> [C, 1, H]."""
        net, tree = self.net, packed_seq_params.chunk_tree()
        ratio = net.num_value_heads // net.num_key_heads
        values = ratio * net.value_head_size
        channels, gate = self._heads(self.in_proj_qkvz, hidden).split(
            [2 * net.key_head_size + values, values], -1
        )
        beta, steps = self._heads(self.in_proj_ba, hidden).chunk(2, -1)
        mixed = silu(causal_convolution(channels.flatten(1), self.conv_weight, tree))
        query, key, value = mixed.unflatten(1, (self.num_groups, -1)).split(
            [net.key_head_size, net.key_head_size, values], -1
        )
        output, _states = gated_delta_rule(
            query,
            key,
            value.unflatten(-1, (ratio, -1)),
            log_decay(steps.flatten(1), self.dt_bias, self.A_log).view(steps.shape),
            beta.sigmoid(),
            tree,
        )
        normed = self._gated_norm(output, gate.unflatten(-1, (ratio, -1)))
        projected, _bias = self.out_proj(normed.flatten(1).unsqueeze(1))
        return projected, None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None, **_: Any
    ) -> dict[str, Any]:
        """Megatron's description of the parameters, for checkpoints."""
        metadata = ensure_metadata_has_dp_cp_group(metadata)
        own: dict[str, Any] = {}
        self._save_to_state_dict(own, "", keep_vars=True)
        found: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            own,
            prefix,
            dict.fromkeys(CUT, 0),
            sharded_offsets,
            tp_group=self.group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        for name, module in self.named_children():
            found |= sharded_state_dict_default(
                module, f"{prefix}{name}.", sharded_offsets, metadata, tp_group=self.group
            )
        return found

    def _columns(self, size: int) -> ColumnParallelLinear:
        return ColumnParallelLinear(
            self.config.hidden_size,
            size,
            config=self.config,
            init_method=self.config.init_method,
            bias=False,
            gather_output=False,
            is_expert=False,
            tp_group=self.group,
        )

    def _heads(self, projection: ColumnParallelLinear, hidden: Tensor) -> Tensor:
        """[C, 1, H] -> [P, G, numbers of each]."""
        projected, _bias = projection(hidden)
        heads: Tensor = projected.squeeze(1).unflatten(1, (self.num_groups, -1))
        return heads

    def _gated_norm(self, output: Tensor, gate: Tensor) -> Tensor:
        """[P, G, R, V] each: RMSNorm of each value head, then times silu of the gate, in float32."""
        # Each tensor rank norms its own heads by it.
        weight = copy_to_tensor_model_parallel_region(self.norm_weight, group=self.group)
        wide = output.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        gated: Tensor = weight * normed.to(output.dtype) * silu(gate.float())
        return gated.to(output.dtype)


class GatedAttention(SelfAttention):
    """Self-attention whose queries come with a gate: `linear_qkv` has, head by head, rows of both."""

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[C, 1, H] -> query [P, 1, heads, D], key and value [P, 1, G, D], gate [P, 1, heads, D]."""
        mixed, _bias = self.linear_qkv(hidden_states)
        size = self.hidden_size_per_attention_head
        groups = mixed.unflatten(-1, (self.num_query_groups_per_partition, -1))
        queries, key, value = groups.split([groups.shape[-1] - 2 * size, size, size], -1)
        query, gate = queries.unflatten(-1, (-1, 2, size)).flatten(2, 3).unbind(-2)
        return self.q_layernorm(query), self.k_layernorm(key), value, gate


def group_channels(net: DeltaNet | None, weight: Tensor) -> Tensor:
    """The convolution's weights [channels, 1, width] of queries, keys and values as they lie here."""
    assert net is not None, "only linear attention has a convolution"
    parts = weight.split([net.key_size, net.key_size, net.value_size])
    return torch.cat([part.unflatten(0, (net.num_key_heads, -1)) for part in parts], 1).flatten(0, 1)


def part_channels(net: DeltaNet | None, weight: Tensor) -> Tensor:
    """Inverse of `group_channels`."""
    assert net is not None, "only linear attention has a convolution"
    size, heads = net.key_head_size, net.num_key_heads
    parts = weight.unflatten(0, (heads, -1)).split([size, size, net.value_size // heads], 1)
    return torch.cat([part.flatten(0, 1) for part in parts])
