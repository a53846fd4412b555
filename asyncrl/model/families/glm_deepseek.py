"""GLM-4 and DeepSeek, with their mixtures of experts (GLM-4.5 and 4.6, DeepSeek-V3 and V2-Lite): a shared
expert, dense first layers, and of DeepSeek latent attention (MLA).

Routers of GLM-4.5 and V3 are of sigmoids with a bias in the choice, of V3 with groups of experts; those of
V2-Lite of softmax. Layers for predicting several tokens, which published folders have behind the last one,
are not trained: transformers does not read them either.
"""

import functools
import math
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    EXPERT_BIAS,
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    experts,
    feed_forward,
    fused_swiglu,
)
from asyncrl.model.shape import LatentAttention, ModelShape

GLM4 = Family(
    architecture="Glm4ForCausalLM",
    model_type="glm4",
    models="GLM-4 0414 (9B, 32B; dense)",
    read=lambda config: {"norm_places": "both", "has_qkv_bias": bool(config.get("attention_bias", True))},
    settings=frozenset(("attention_bias", "partial_rotary_factor")),
    rotated_share=0.5,
    is_rotation_interleaved=True,
    norms=(
        *("input_layernorm", "post_self_attn_layernorm"),
        *("post_attention_layernorm", "post_mlp_layernorm"),
    ),
    feed_forward=fused_swiglu,
    layer_names=LAYER_NAMES
    | {
        "self_attn_bda.norm.weight": ("post_self_attn_layernorm.weight",),
        "mlp_bda.norm.weight": ("post_mlp_layernorm.weight",),
        "mlp.linear_fc1.weight": ("mlp.gate_up_proj.weight",),
    },
    adapter_targets=(),
)

SHARED = "mlp.shared_experts."
SPARSE = LAYER_NAMES | {
    "mlp.router.expert_bias": (EXPERT_BIAS,),
    "mlp.shared_experts.linear_fc1.weight": (SHARED + "gate_proj.weight", SHARED + "up_proj.weight"),
    "mlp.shared_experts.linear_fc2.weight": (SHARED + "down_proj.weight",),
}
SPARSE_SETTINGS = frozenset(
    (
        *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"),
        *("first_k_dense_replace", "routed_scaling_factor"),
    )
)
SIGMOIDS = {"router_scores": "sigmoid", "has_router_bias": True}
sparse_feed_forward = functools.partial(feed_forward, shared=SHARED)


def _read_experts(config: Config) -> dict[str, Any]:
    return experts(config, "n_routed_experts") | {
        "dense_layers": tuple(range(min(config["first_k_dense_replace"], config["num_hidden_layers"]))),
        "shared_expert_size": config["moe_intermediate_size"] * config["n_shared_experts"],
        "router_scale": float(config["routed_scaling_factor"]),
    }


def _read_glm4_moe(config: Config) -> dict[str, Any]:
    kinds = {"has_qkv_bias": bool(config["attention_bias"]), "has_qk_norm": bool(config["use_qk_norm"])}
    return kinds | SIGMOIDS | _read_experts(config)


GLM4_MOE = Family(
    architecture="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    models="GLM-4.5 (355B-A32B), GLM-4.5-Air (106B-A12B), GLM-4.6",
    read=_read_glm4_moe,
    settings=SPARSE_SETTINGS | {"use_qk_norm", "attention_bias", "partial_rotary_factor"},
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
    feed_forward=sparse_feed_forward,
    layer_names=SPARSE,
    unread=r"model\.layers\.{num_layers}\..*",
)


KEYS_AND_VALUES = "self_attn.kv_a_proj_with_mqa.weight"
QUERIES = "self_attn.q_a_proj.weight"


def _read_latent(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    if config.get("num_key_value_heads") not in (None, heads):
        raise InputError(
            f"num_key_value_heads is {config['num_key_value_heads']}; latent attention has as many as "
            f"num_attention_heads, {heads}."
        )
    rotated = config["qk_rope_head_dim"]
    size = config["qk_nope_head_dim"] + rotated
    return _read_experts(config) | {
        "num_kv_heads": heads,
        "head_size": size,
        "latent": LatentAttention(
            config["kv_lora_rank"], config.get("q_lora_rank"), rotated, config["v_head_dim"]
        ),
        "attention_scale": _attention_scale(config, size),
    }


def _attention_scale(config: Config, head_size: int) -> float | None:
    """1 / sqrt(D) times m^2, m = 0.1 mscale_all_dim ln(factor) + 1 of yarn."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise InputError(f"rotary positions of this family are default or yarn, in servers too, not {kind}.")
    all_dim, factor = rope.get("mscale_all_dim"), rope.get("factor")
    if kind == "default" or not all_dim or not factor or factor <= 1:
        return None
    return float(head_size**-0.5 * (0.1 * all_dim * math.log(factor) + 1) ** 2)


def _read_v3(config: Config) -> dict[str, Any]:
    groups, per_token = config.get("n_group") or 1, config.get("topk_group") or 1
    experts, chosen = config["n_routed_experts"], config["num_experts_per_tok"]
    is_grouped = per_token < groups
    if is_grouped and (experts % groups or chosen // per_token != 2):
        raise InputError(
            f"n_group is {groups} and topk_group {per_token}, of {experts} experts of which "
            f"{chosen} are taken. transformers and servers choose groups by their best two experts, Megatron "
            f"by the best num_experts_per_tok / topk_group of each: only where that is two, and n_group "
            f"divides the experts, can the model be trained."
        )
    grouped = {"expert_groups": groups, "groups_per_token": per_token} if is_grouped else {}
    return _read_latent(config) | SIGMOIDS | grouped


def _attention(shape: ModelShape) -> Tensors:
    latent, hidden, heads = shape.latent, shape.hidden_size, shape.num_heads
    assert latent is not None
    if latent.query_size is None:
        yield "self_attn.q_proj.weight", (heads * shape.head_size, hidden)
    else:
        yield QUERIES, (latent.query_size, hidden)
        yield "self_attn.q_a_layernorm.weight", (latent.query_size,)
        yield "self_attn.q_b_proj.weight", (heads * shape.head_size, latent.query_size)
    yield KEYS_AND_VALUES, (latent.size + latent.rotated_size, hidden)
    yield "self_attn.kv_a_layernorm.weight", (latent.size,)
    of_both = shape.head_size - latent.rotated_size + latent.value_size
    yield "self_attn.kv_b_proj.weight", (heads * of_both, latent.size)
    yield "self_attn.o_proj.weight", (hidden, heads * latent.value_size)


NAMES = SPARSE | {
    "self_attention.linear_q_proj.weight": ("self_attn.q_proj.weight",),
    "self_attention.linear_q_down_proj.weight": (QUERIES,),
    "self_attention.q_layernorm.weight": ("self_attn.q_a_layernorm.weight",),
    "self_attention.linear_q_up_proj.weight": ("self_attn.q_b_proj.weight",),
    "self_attention.linear_kv_down_proj.weight": (KEYS_AND_VALUES,),
    "self_attention.kv_layernorm.weight": ("self_attn.kv_a_layernorm.weight",),
    "self_attention.linear_kv_up_proj.weight": ("self_attn.kv_b_proj.weight",),
}
SETTINGS = SPARSE_SETTINGS | {
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
}
# The first is a sum of two others; the rest is for training by a loss of balance, and for serving.
IGNORED = frozenset(
    ("qk_head_dim", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers", "num_mtp_layers")
)
ONLY: dict[str, tuple[Any, ...]] = {
    "moe_layer_freq": (1,),
    "rope_interleave": (True,),
    "tie_word_embeddings": (False,),
}

DEEPSEEK_V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    models="DeepSeek-V3 and R1 (671B-A37B; in BF16), Moonlight (16B-A3B)",
    read=_read_v3,
    settings=SETTINGS | {"n_group", "topk_group"},
    ignored=IGNORED,
    only=ONLY
    | {
        "topk_method": ("noaux_tc",),
        "scoring_func": ("sigmoid",),
        # Megatron's router of sigmoids always divides by the sum.
        "norm_topk_prob": (True,),
    },
    is_rotation_interleaved=True,
    attention=_attention,
    feed_forward=sparse_feed_forward,
    layer_names=NAMES,
    unread=r"model\.layers\.(\d+\.self_attn\.rotary_emb\.inv_freq|{num_layers}\..*)",
    adapter_targets=(),
)
DEEPSEEK_V2 = Family(
    architecture="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    models="DeepSeek-V2-Lite (16B-A2.4B)",
    read=lambda config: _read_latent(config) | {"are_expert_weights_normalised": False},
    settings=SETTINGS,
    ignored=IGNORED,
    only=ONLY
    | {
        # transformers and Megatron score groups differently here, and normalise no weights.
        "topk_method": ("greedy",),
        "scoring_func": ("softmax",),
        "norm_topk_prob": (False,),
        "n_group": (1,),
        "topk_group": (1,),
    },
    is_rotation_interleaved=True,
    attention=_attention,
    feed_forward=sparse_feed_forward,
    layer_names=NAMES,
    adapter_targets=(),
)
