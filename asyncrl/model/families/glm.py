"""GLM-4 and its mixtures of experts (4.5, 4.6)."""

from typing import Any

from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    fused_swiglu,
    norms,
    separate_attention,
    swiglu,
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


# The layer for predicting several tokens, which published folders have behind the last one, is not trained:
# transformers does not read it either.
BIAS = "mlp.gate.e_score_correction_bias"
SHARED = "mlp.shared_experts."


def _read_glm4_moe(config: Config) -> dict[str, Any]:
    width = config["moe_intermediate_size"]
    return {
        "has_qkv_bias": bool(config["attention_bias"]),
        "has_qk_norm": bool(config["use_qk_norm"]),
        "num_experts": config["n_routed_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": width,
        "dense_layers": tuple(range(min(config["first_k_dense_replace"], config["num_hidden_layers"]))),
        "shared_expert_size": width * config["n_shared_experts"],
        "router_scores": "sigmoid",
        "has_router_bias": True,
        "router_scale": float(config["routed_scaling_factor"]),
    }


def layer_tensors(shape: ModelShape) -> Tensors:
    yield from norms(shape)
    yield from separate_attention(shape)
    yield from feed_forward(shape)


def feed_forward(shape: ModelShape) -> Tensors:
    if shape.num_experts is None:
        yield from swiglu("mlp.", shape.hidden_size, shape.ffn_size)
        return
    yield "mlp.gate.weight", (shape.num_experts, shape.hidden_size)
    if shape.has_router_bias:
        yield BIAS, (shape.num_experts,)
    for expert in range(shape.num_experts):
        yield from swiglu(f"mlp.experts.{expert}.", shape.hidden_size, shape.expert_ffn_size)
    yield from swiglu(SHARED, shape.hidden_size, shape.shared_expert_size)


NAMES = LAYER_NAMES | {
    "mlp.router.expert_bias": (BIAS,),
    "mlp.shared_experts.linear_fc1.weight": (SHARED + "gate_proj.weight", SHARED + "up_proj.weight"),
    "mlp.shared_experts.linear_fc2.weight": (SHARED + "down_proj.weight",),
}

GLM4_MOE = Family(
    architecture="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    models="GLM-4.5 (355B-A32B), GLM-4.5-Air (106B-A12B), GLM-4.6",
    read=_read_glm4_moe,
    settings=frozenset(
        (
            *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"),
            *("first_k_dense_replace", "routed_scaling_factor", "use_qk_norm", "attention_bias"),
            "partial_rotary_factor",
        )
    ),
    ignored=frozenset(("num_nextn_predict_layers", "num_mtp_layers")),
    only={
        "n_group": (1,),
        "topk_group": (1,),
        # Megatron's router of sigmoids always divides by the sum.
        "norm_topk_prob": (True,),
        # SGLang's model has an output layer of its own.
        "tie_word_embeddings": (False,),
    },
    rotated_share=0.5,
    layer_tensors=layer_tensors,
    layer_names=NAMES,
    unread=r"model\.layers\.{num_layers}\..*",
)
