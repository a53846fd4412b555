"""The layers of a model as Megatron's specs: attention and feed-forward parts by what its shape says.

Transformer Engine's where it is installed next to CUDA; else, and under adapters, the local ones, whose
experts are computed one after the other. Both with our packed attention. Rotary positions beyond Megatron's
own (scaled, partial, interleaved, or other ones in some layers) are by transformers' frequencies; cosines and
sines are computed once per micro-batch.

Shapes: C tokens of this context-parallel rank, H heads, D head size, R of it rotated.
"""

import dataclasses
import functools
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from asyncrl.model.layout import Layout
from asyncrl.model.rotary import LLAMA3_ROPE, Rotation
from asyncrl.model.shape import ModelShape
from asyncrl.recipe.sections.model import Lora
from asyncrl.system import machine
from asyncrl.trainer.network.adapted_layers import adapt, is_of_adapter
from asyncrl.trainer.network.bitwise import BitwiseNorm, BitwiseRotary, make_bitwise
from asyncrl.trainer.network.delta_net import GatedAttention, LinearAttention
from asyncrl.trainer.network.experts import skip_reduction, sum_over_copies
from asyncrl.trainer.network.latent_attention import latent_attention
from asyncrl.trainer.network.norms import (
    has_own_norms,
    multiply_branches,
    multiply_embedding,
    norm_kind,
    place_norms,
)
from asyncrl.trainer.packing.attention import PackedAttention, PackedRotary, PackedSequences
from asyncrl.trainer.packing.attention_kernels import KERNELS
from asyncrl.trainer.packing.context_parallel import own_tokens
from asyncrl.trainer.packing.limits import UNLIMITED, Limits, Rows
from asyncrl.trainer.packing.rotary import Turns, turns_of


def block_spec(
    config: TransformerConfig,
    shape: ModelShape,
    stage: int | None = None,
    *,
    is_bitwise: bool = False,
    lora: Lora | None = None,
) -> TransformerBlockSubmodules:
    """The layers of this rank's chunk."""
    first = get_transformer_layer_offset(config, vp_stage=stage)
    numbers = range(first, first + get_num_layers_to_build(config, vp_stage=stage))
    shapes = [shape.of_layer(number) for number in numbers]
    specs = {each: _layer_spec(config, each, is_bitwise=is_bitwise, lora=lora) for each in set(shapes)}
    layers = [specs[each][0] for each in shapes]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=specs[shapes[0]][1])


def finish_chunk(model: GPTModel, shape: ModelShape, layout: Layout, lora: Lora | None) -> None:
    """Features of layers that are set once a chunk is built of them."""
    if model.pre_process and shape.embedding_multiplier != 1.0:
        is_rounded = shape.is_embedding_multiplier_rounded
        multiply_embedding(model, shape.embedding_multiplier, is_rounded=is_rounded)
    if lora is not None:
        _train_adapters_alone(model)
    if layout.tensor > 1:
        sum_over_copies(model)
    if shape.has_linear_biases:
        skip_reduction(model)


def _train_adapters_alone(model: GPTModel) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_of_adapter(name))
    if model.pre_process and model.config.recompute_granularity is not None:
        # What is computed again has a gradient only if something that it is given has one.
        model.embedding.register_forward_hook(
            lambda _, __, hidden: hidden.requires_grad_(torch.is_grad_enabled())
        )


def _layer_spec(
    config: TransformerConfig, shape: ModelShape, *, is_bitwise: bool, lora: Lora | None
) -> tuple[ModuleSpec, type[torch.nn.Module]]:
    """A layer of a model whose layers are all of `shape`, and its norms."""
    kinds = {
        "num_experts": shape.num_experts,
        "moe_grouped_gemm": config.moe_grouped_gemm,
        "multi_latent_attention": shape.latent is not None,
    }
    engine = None
    if has_transformer_engine() and lora is None:
        from megatron.core.extensions.transformer_engine import TENorm

        norm = TENorm
        engine = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm, **kinds)
    if engine is not None and not has_own_norms(shape):
        layer = engine
    else:
        norm = BitwiseNorm if is_bitwise else norm_kind(shape)
        layer = get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization, **kinds
        )
        place_norms(layer.submodules, config, shape, norm)
        if lora is not None:
            adapt(layer, lora)
        if engine is not None and shape.num_experts is not None:
            # Grouped experts are Transformer Engine's; their norm lies outside of them.
            layer.submodules.mlp = engine.submodules.mlp
    attention = layer.submodules.self_attention
    if shape.latent is not None:
        layer.submodules.self_attention = latent_attention(attention, shape, norm)
    else:
        attention.submodules.core_attention = (
            functools.partial(LayerAttention, shape=shape) if shape.has_layer_kinds() else PackedAttention
        )
    if shape.has_output_gate:
        attention.module = GatedAttention
    if shape.delta_layers:
        layer.submodules.self_attention = ModuleSpec(LinearAttention, params={"shape": shape})
    if shape.residual_multiplier != 1.0:
        multiply_branches(layer.submodules, shape.residual_multiplier)
    if is_bitwise:
        make_bitwise(layer.submodules)
    return layer, norm


def has_transformer_engine() -> bool:
    return torch.cuda.is_available() and machine.has_transformer_engine()


class LayerAttention(PackedAttention):
    """Core attention where layers differ, or where rotary positions are more than Megatron's own.

    Rotates by what `LayerRotary` left for its kind of layer, or not at all; sliding windows, soft caps,
    sinks of this tensor rank's heads."""

    def __init__(
        self, config: TransformerConfig, *, layer_number: int, shape: ModelShape, **arguments: Any
    ) -> None:
        """`layer_number` counts from 1 over all stages, as Megatron does."""
        super().__init__(config, **arguments)
        self.is_rotated = layer_number - 1 not in shape.unrotated_layers
        self.is_sliding = layer_number - 1 in shape.sliding_layers
        self.limits = Limits(shape.window if self.is_sliding else None, shape.attention_cap, shape.has_sinks)
        if shape.has_sinks:
            num_heads = shape.num_heads // parallel_state.get_tensor_model_parallel_world_size()
            self.sinks = torch.nn.Parameter(torch.zeros(num_heads, dtype=config.params_dtype))
            set_tensor_model_parallel_attributes(self.sinks, True, 0, 1)

    def _rotate(self, query: Tensor, key: Tensor, sequences: PackedSequences) -> tuple[Tensor, Tensor]:
        if not self.is_rotated:
            return query, key
        assert sequences.layer_rotations is not None, "LayerRotary comes before the layers"
        turns = sequences.layer_rotations[int(self.is_sliding)]
        return turns.rotate(query), turns.rotate(key)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences, scale: float
    ) -> Tensor:
        rows, limits = sequences.rows, self.limits
        if limits.window is not None and rows.longest <= limits.window:
            limits = dataclasses.replace(limits, window=None)
        if limits == UNLIMITED:
            return super()._attend(query, key, value, sequences, scale)
        if limits.window is not None and rows.masks:
            rows = windowed_rows(sequences, limits.window)
        kernel = KERNELS[sequences.kernel]
        if not limits.has_sinks:
            return kernel.attend(query, key, value, rows, scale, limits=limits)
        group = parallel_state.get_context_parallel_group()
        # Each context rank has all tokens of its heads here: gradients of the others' are zero on it.
        sinks = self.sinks.chunk(group.size())[group.rank()]
        return kernel.attend(query, key, value, rows, scale, limits=limits, sinks=sinks)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Megatron's description of the sinks, for checkpoints."""
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True), prefix, {"sinks": 0}, sharded_offsets
        )
        return sharded


def windowed_rows(sequences: PackedSequences, window: int) -> Rows:
    """The rows on a CPU with masks that end at the window; made once for all layers."""
    found = sequences.windowed.get(window)
    if found is None:
        rows = sequences.rows
        # Not the places: in a block of sequences that share a beginning they are no positions.
        positions = sequences.positions.index_select(0, sequences.places)
        parts = positions.split([count * length for count, length in rows.buckets])
        masks = tuple(
            _windowed(mask, part.view(size), window)
            for mask, part, size in zip(rows.masks, parts, rows.buckets, strict=True)
        )
        found = sequences.windowed[window] = dataclasses.replace(rows, masks=masks)
    return found


def _windowed(mask: Tensor | None, positions: Tensor, window: int) -> Tensor:
    """[B, L, L] or None, [B, L] -> [B, L, L]."""
    length = positions.shape[1]
    looks = torch.ones(1, length, length, dtype=torch.bool).tril_() if mask is None else mask
    return looks & (positions[:, :, None] - positions[:, None, :] < window)


def frequencies(rotation: Rotation, shape: ModelShape) -> tuple[Tensor, float]:
    """([R / 2] float32 angles per position, factor of cosines and sines), as transformers has them."""
    rotated = int(shape.rotary_size * rotation.share)
    if rotation.kind == "default":
        return 1.0 / rotation.theta ** (torch.arange(0, rotated, 2).float() / rotated), 1.0
    # A second to import, and the usual kind needs nothing of it.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        head_dim=shape.rotary_size,
        max_position_embeddings=shape.max_positions,
        rope_parameters={
            "rope_type": rotation.kind,
            "rope_theta": rotation.theta,
            "partial_rotary_factor": rotation.share,
            **dict(rotation.numbers),
            **_kinds_own(rotation),
        },
    )
    found, factor = ROPE_INIT_FUNCTIONS[rotation.kind](config, torch.device("cpu"))
    return found, float(factor)


def _kinds_own(rotation: Rotation) -> dict[str, Any]:
    """Settings of a kind beside its numbers; no sequence reaches the long factors."""
    if rotation.kind == "yarn":
        return {"truncate": rotation.is_truncated}
    return {name: list(rotation.factors) for name in ("short_factor", "long_factor") if rotation.factors}


class LayerRotary(torch.nn.Module):
    """Megatron's rotary module of a model whose attention rotates by itself (`LayerAttention`)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        usual = usual_rotation(shape)
        self._rotations = (usual, shape.sliding_rotation or usual)
        self._found = [frequencies(rotation, shape) for rotation in self._rotations]

    def get_rotary_seq_len(self, *arguments: Any) -> PackedSequences:
        sequences: PackedSequences = arguments[-1]
        return sequences

    def forward(self, sequences: PackedSequences, **_: Any) -> None:
        """Leaves what attention rotates by: of full layers and of sliding ones."""
        positions = own_tokens(sequences.positions).float()
        full = self._turns(0, positions)
        is_other = self._rotations[1] != self._rotations[0]
        sequences.layer_rotations = full, self._turns(1, positions) if is_other else full

    def _turns(self, kind: int, positions: Tensor) -> Turns:
        (found, factor), rotation = self._found[kind], self._rotations[kind]
        angles = positions[:, None] * found.to(positions.device)
        cosines, sines = turns_of(torch.cat([angles, angles], -1)[:, None, None])
        return Turns(cosines * factor, sines * factor, rotation.is_interleaved)


def usual_rotation(shape: ModelShape) -> Rotation:
    """The rotation of full layers."""
    if shape.rotation is not None:
        return shape.rotation
    if shape.rope_scaling_factor is None:
        return Rotation(shape.rope_theta)
    return Rotation(shape.rope_theta, "llama3", (("factor", shape.rope_scaling_factor), *LLAMA3_ROPE.items()))


def build_rotary(shape: ModelShape, config: TransformerConfig, is_bitwise: bool) -> torch.nn.Module:
    """The module that computes angles once per micro-batch, of the kind that the layers rotate by."""
    if shape.has_layer_kinds():
        assert not is_bitwise, f"{shape.architecture} with model.bitwise_agreement"
        return LayerRotary(shape)
    rotary = (BitwiseRotary if is_bitwise else PackedRotary)(
        shape.head_size,
        rotary_percent=1.0,
        rotary_base=shape.rope_theta,
        rope_scaling=shape.rope_scaling_factor is not None,
        rope_scaling_factor=shape.rope_scaling_factor or 1.0,
        use_cpu_initialization=config.use_cpu_initialization,
    )
    if is_bitwise:
        rotary.shape = shape
    return rotary
