"""Families with sliding layers: Gemma 2 and 3, OLMo 2 and 3, gpt-oss.

Gemma (text): scaled embeddings, norms that add one before and behind, GeGLU. OLMo: norms behind attention and
feed-forward network, and over all queries and all keys. gpt-oss: attention sinks, biases everywhere, experts
of clamped SwiGLU, all of a layer in one tensor.
"""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    attention,
    experts,
    sliding_layers,
)
from asyncrl.model.shape import ModelShape

BOTH = frozenset(("full_attention", "sliding_attention"))

GELU = ("gelu_pytorch_tanh",)
GEMMA_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": GELU,
    "hidden_activation": GELU,
    "use_bidirectional_attention": (False,),
}
GEMMA_SETTINGS = frozenset(
    ("query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
)
NORMS = (
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
)
NAMES = LAYER_NAMES | {
    "self_attn_bda.norm.weight": ("post_attention_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("pre_feedforward_layernorm.weight",),
    "mlp_bda.norm.weight": ("post_feedforward_layernorm.weight",),
}


def _read_gemma(config: Config) -> dict[str, Any]:
    """Fields that Gemma 2 and 3 share."""
    return {
        "norm_places": "both",
        "norms_add_one": True,
        "activation": "gelu_tanh",
        "embedding_multiplier": config["hidden_size"] ** 0.5,
        "is_embedding_multiplier_rounded": True,
        "attention_scale": config["query_pre_attn_scalar"] ** -0.5,
        "logits_cap": config.get("final_logit_softcapping"),
        "window": config["sliding_window"],
        "is_tied": bool(config.get("tie_word_embeddings", True)),
    }


def _read_gemma2(config: Config) -> dict[str, Any]:
    usual = tuple(range(0, config["num_hidden_layers"], 2))
    if sliding_layers(config, default=lambda layer: layer in usual) != usual:
        raise InputError(
            "layer_types of Gemma 2 begins with sliding_attention and alternates, as in servers."
        )
    return _read_gemma(config) | {
        "attention_cap": config.get("attn_logit_softcapping"),
        "sliding_layers": usual,
    }


GEMMA2 = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    models="Gemma 2",
    read=_read_gemma2,
    settings=GEMMA_SETTINGS,
    # The second is a copy of sliding_window.
    ignored=frozenset(("cache_implementation", "sliding_window_size")),
    only=GEMMA_ONLY,
    layer_types=BOTH,
    norms=NORMS,
    layer_names=NAMES,
)


def _read_gemma3(config: Config) -> dict[str, Any]:
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    return _read_gemma(config) | {
        "has_qk_norm": True,
        "sliding_layers": sliding_layers(config, default=lambda layer: (layer + 1) % pattern != 0),
    }


GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    models="Gemma 3 (text: 270M, 1B)",
    read=_read_gemma3,
    settings=(GEMMA_SETTINGS - {"attn_logit_softcapping"})
    | {"sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"},
    ignored=frozenset(("cache_implementation",)),
    only=GEMMA_ONLY | {"attn_logit_softcapping": (None,)},
    layer_types=BOTH,
    rope_theta=1000000.0,
    sliding_rope_theta=10000.0,
    norms=NORMS,
    layer_names=NAMES,
)


OLMO: dict[str, Any] = {"norm_places": "behind", "has_wide_qk_norm": True}
BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")
"""Norms behind attention and feed-forward network."""
OLMO_NAMES = LAYER_NAMES | {
    f"{place}_bda.norm.weight": (f"{name}.weight",)
    for place, name in zip(("self_attn", "mlp"), BEHIND, strict=True)
}
OLMO2 = Family(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    models="OLMo 2",
    read=lambda config: OLMO,
    norms=BEHIND,
    layer_names=OLMO_NAMES,
)


# SGLang 0.5.23 has a configuration of its own for it, with the rotary keys of transformers 4.
def _read_olmo3(config: Config) -> dict[str, Any]:
    return OLMO | {
        "window": config["sliding_window"],
        "sliding_layers": sliding_layers(config, default=lambda layer: (layer + 1) % 4 != 0),
    }


OLMO3 = Family(
    architecture="Olmo3ForCausalLM",
    model_type="olmo3",
    models="OLMo 3",
    read=_read_olmo3,
    settings=frozenset(("sliding_window",)),
    layer_types=BOTH,
    rope_theta=500000.0,
    sliding_rope_theta=500000.0,
    serves_old_rotary_keys=True,
    norms=BEHIND,
    layer_names=OLMO_NAMES,
)


EXPERTS = "mlp.experts."


def _read_gpt_oss(config: Config) -> dict[str, Any]:
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        raise InputError("config.json has neither rope_parameters nor rope_scaling, which gpt-oss needs.")
    return {
        "head_size": config["head_dim"],
        "has_qkv_bias": True,
        "has_linear_biases": True,
        "has_sinks": True,
        "window": config["sliding_window"],
        "sliding_layers": sliding_layers(config, default=lambda layer: layer % 2 == 0),
        **experts(config, "num_local_experts", "intermediate_size"),
        "activation": "quick_gelu",
        "gate_limit": config["swiglu_limit"],
        "gate_offset": 1.0,
    }


def _attention_with_sinks(shape: ModelShape) -> Tensors:
    yield from attention(shape)
    yield "self_attn.o_proj.bias", (shape.hidden_size,)
    yield "self_attn.sinks", (shape.num_heads,)


def _experts_in_one(shape: ModelShape) -> Tensors:
    assert shape.num_experts is not None
    hidden, width, count = shape.hidden_size, shape.expert_ffn_size, shape.num_experts
    yield "mlp.router.weight", (count, hidden)
    yield "mlp.router.bias", (count,)
    yield EXPERTS + "gate_up_proj", (count, hidden, 2 * width)
    yield EXPERTS + "gate_up_proj_bias", (count, 2 * width)
    yield EXPERTS + "down_proj", (count, width, hidden)
    yield EXPERTS + "down_proj_bias", (count, hidden)


GPT_OSS = Family(
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    models="gpt-oss (20b, 120b; in BF16)",
    read=_read_gpt_oss,
    settings=frozenset(
        ("num_local_experts", "num_experts_per_tok", "head_dim", "sliding_window", "swiglu_limit")
    ),
    # The number of experts and the original context by OpenAI's names, which transformers does not read.
    ignored=frozenset(("experts_per_token", "initial_context_length")),
    only={
        "attention_bias": (True,),
        "swiglu_alpha": (1.702,),
        "hidden_act_alpha": (1.702,),
        # SGLang's model has an output layer of its own.
        "tie_word_embeddings": (False,),
    },
    layer_types=BOTH,
    rope_theta=150000.0,
    attention=_attention_with_sinks,
    feed_forward=_experts_in_one,
    layer_names=LAYER_NAMES
    | {
        "self_attention.linear_proj.bias": ("self_attn.o_proj.bias",),
        "self_attention.core_attention.sinks": ("self_attn.sinks",),
        "mlp.router.weight": ("mlp.router.weight",),
        "mlp.router.bias": ("mlp.router.bias",),
        # Slices of one tensor (asyncrl/trainer/network/experts.py).
        "mlp.experts.linear_fc1.weight": (EXPERTS + "gate_up_proj.{}",),
        "mlp.experts.linear_fc1.bias": (EXPERTS + "gate_up_proj_bias.{}",),
        "mlp.experts.linear_fc2.weight": (EXPERTS + "down_proj.{}",),
        "mlp.experts.linear_fc2.bias": (EXPERTS + "down_proj_bias.{}",),
    },
    adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    unquantized="Use its conversion to BF16, such as unsloth/gpt-oss-20b-BF16, or save one by transformers: "
    "AutoModelForCausalLM.from_pretrained(ID, quantization_config=Mxfp4Config(dequantize=True))"
    ".save_pretrained(FOLDER).",
)
