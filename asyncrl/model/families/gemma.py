"""Gemma 2 and 3 (text): scaled embeddings, norms that add one before and behind, GeGLU, sliding layers."""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    separate_attention,
    sliding_layers,
    swiglu,
)
from asyncrl.model.shape import ModelShape

GELU = ("gelu_pytorch_tanh",)
ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": GELU,
    "hidden_activation": GELU,
    "use_bidirectional_attention": (False,),
}
SETTINGS = frozenset(
    ("query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
)
NORMS = (
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
    *("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"),
)
NAMES = LAYER_NAMES | {
    "self_attn_bda.norm.weight": ("post_attention_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("pre_feedforward_layernorm.weight",),
    "mlp_bda.norm.weight": ("post_feedforward_layernorm.weight",),
}


def read_layers(config: Config) -> dict[str, Any]:
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


def layer_tensors(shape: ModelShape) -> Tensors:
    for name in NORMS:
        yield name, (shape.hidden_size,)
    yield from separate_attention(shape)
    yield from swiglu("mlp.", shape.hidden_size, shape.ffn_size)


def _read(config: Config) -> dict[str, Any]:
    usual = tuple(range(0, config["num_hidden_layers"], 2))
    if sliding_layers(config, default=lambda layer: layer in usual) != usual:
        raise InputError(
            "layer_types of Gemma 2 begins with sliding_attention and alternates, as in servers."
        )
    return read_layers(config) | {
        "attention_cap": config.get("attn_logit_softcapping"),
        "sliding_layers": usual,
    }


GEMMA2 = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    models="Gemma 2",
    read=_read,
    settings=SETTINGS,
    # The second is a copy of sliding_window.
    ignored=frozenset(("cache_implementation", "sliding_window_size")),
    only=ONLY,
    layer_types=frozenset(("full_attention", "sliding_attention")),
    layer_tensors=layer_tensors,
    layer_names=NAMES,
)


def _read_gemma3(config: Config) -> dict[str, Any]:
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    return read_layers(config) | {
        "has_qk_norm": True,
        "sliding_layers": sliding_layers(config, default=lambda layer: (layer + 1) % pattern != 0),
    }


GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    models="Gemma 3 (text: 270M, 1B)",
    read=_read_gemma3,
    settings=(SETTINGS - {"attn_logit_softcapping"})
    | {"sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"},
    ignored=frozenset(("cache_implementation",)),
    only=ONLY | {"attn_logit_softcapping": (None,)},
    layer_types=frozenset(("full_attention", "sliding_attention")),
    rope_theta=1000000.0,
    sliding_rope_theta=10000.0,
    layer_tensors=layer_tensors,
    layer_names=NAMES,
)
