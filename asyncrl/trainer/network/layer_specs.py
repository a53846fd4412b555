"""The layers of a model as Megatron's specs: attention and feed-forward parts by what its shape says.

Transformer Engine's where it is installed next to CUDA; else, and under adapters, the local ones, whose
experts are computed one after the other. Both with our packed attention.
"""

import functools

import torch
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from asyncrl.model.shape import ModelShape
from asyncrl.recipe.lora import Lora
from asyncrl.system import machine
from asyncrl.trainer.network.adapted_layers import adapt
from asyncrl.trainer.network.bitwise import BitwiseNorm, make_bitwise
from asyncrl.trainer.network.delta_net import GatedAttention, LinearAttention
from asyncrl.trainer.network.latent_attention import latent_attention
from asyncrl.trainer.network.layer_attention import LayerAttention
from asyncrl.trainer.network.multipliers import multiply_branches
from asyncrl.trainer.network.norms import has_own_norms, norm_kind, place_norms
from asyncrl.trainer.packing.attention import PackedAttention


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
