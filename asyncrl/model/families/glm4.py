"""GLM-4 (dense): norms before and behind; a part of each head is rotated, neighbor by neighbor."""

from typing import Any

from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    fused_swiglu,
    separate_attention,
)
from asyncrl.model.shape import ModelShape

NORMS = (
    *("input_layernorm.weight", "post_self_attn_layernorm.weight"),
    *("post_attention_layernorm.weight", "post_mlp_layernorm.weight"),
)


def _read(config: Config) -> dict[str, Any]:
    return {"norm_places": "both", "has_qkv_bias": bool(config.get("attention_bias", True))}


def _layer_tensors(shape: ModelShape) -> Tensors:
    for name in NORMS:
        yield name, (shape.hidden_size,)
    yield from separate_attention(shape)
    yield from fused_swiglu(shape)


GLM4 = Family(
    architecture="Glm4ForCausalLM",
    model_type="glm4",
    models="GLM-4 0414 (9B, 32B; dense)",
    read=_read,
    settings=frozenset(("attention_bias", "partial_rotary_factor")),
    rotated_share=0.5,
    is_rotation_interleaved=True,
    layer_tensors=_layer_tensors,
    layer_names=LAYER_NAMES
    | {
        "self_attn_bda.norm.weight": ("post_self_attn_layernorm.weight",),
        "mlp_bda.norm.weight": ("post_mlp_layernorm.weight",),
        "mlp.linear_fc1.weight": ("mlp.gate_up_proj.weight",),
    },
    adapter_targets=(),
)
