"""Llama and what is built like it: Mistral, Mixtral, SmolLM3, Granite 3, Phi-3 and Phi-4, Qwen2 to Qwen3."""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    experts,
    fused_swiglu,
)
from asyncrl.model.shape import ModelShape

LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    models="Llama (Llama 2 and 3, SmolLM2, R1-Distill-Llama)",
)
MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    models="Mistral (7B, Nemo, Small)",
    settings=frozenset(("sliding_window",)),
    has_window=True,
)

BLOCK = "block_sparse_moe"
"""Folders keep this name, whatever transformers calls the module."""


def _mixtral_experts(shape: ModelShape) -> Tensors:
    assert shape.num_experts is not None
    hidden, width = shape.hidden_size, shape.expert_ffn_size
    yield f"{BLOCK}.gate.weight", (shape.num_experts, hidden)
    for expert in range(shape.num_experts):
        for part, size in (("w1", (width, hidden)), ("w3", (width, hidden)), ("w2", (hidden, width))):
            yield f"{BLOCK}.experts.{expert}.{part}.weight", size


MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    models="Mixtral (8x7B, 8x22B)",
    read=lambda config: experts(config, "num_local_experts", "intermediate_size"),
    settings=frozenset(("num_local_experts", "num_experts_per_tok", "sliding_window")),
    # SGLang's model has an output layer of its own.
    only={"router_jitter_noise": (0.0,), "tie_word_embeddings": (False,)},
    has_window=True,
    feed_forward=_mixtral_experts,
    layer_names=LAYER_NAMES
    | {
        "mlp.router.weight": (f"{BLOCK}.gate.weight",),
        "mlp.experts.linear_fc1.weight": tuple(f"{BLOCK}.experts.{{}}.{x}.weight" for x in ("w1", "w3")),
        "mlp.experts.linear_fc2.weight": (f"{BLOCK}.experts.{{}}.w2.weight",),
    },
    adapter_targets=(),
)


def _read_smollm3(config: Config) -> dict[str, Any]:
    num_layers = config["num_hidden_layers"]
    # What transformers takes where config.json has neither.
    interval = config.get("no_rope_layer_interval", 4)
    rotated = config.get("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(num_layers)]
    return {
        "unrotated_layers": tuple(layer for layer in range(num_layers) if not rotated[layer]),
        "is_tied": bool(config.get("tie_word_embeddings", True)),
    }


WINDOWS = frozenset(("sliding_window", "max_window_layers"))
"""Without effect, because use_sliding_window must be false."""
SMOLLM3 = Family(
    architecture="SmolLM3ForCausalLM",
    model_type="smollm3",
    models="SmolLM3",
    read=_read_smollm3,
    settings=frozenset(("no_rope_layers", "no_rope_layer_interval")),
    ignored=WINDOWS,
    rope_theta=2000000.0,
)


def _read_granite(config: Config) -> dict[str, Any]:
    return {
        "embedding_multiplier": float(config["embedding_multiplier"]),
        "residual_multiplier": float(config["residual_multiplier"]),
        "attention_scale": float(config["attention_multiplier"]),
        "logits_divisor": float(config["logits_scaling"]),
    }


GRANITE = Family(
    architecture="GraniteForCausalLM",
    model_type="granite",
    models="Granite 3 (dense)",
    read=_read_granite,
    settings=frozenset(
        ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    ),
)


# The versions for 128k tokens and Phi-4-mini (longrope) are trained at up to
# `original_max_position_embeddings` tokens, where transformers and SGLang divide the angles by the same
# factors.
ORIGINAL = 4096
"""transformers' default of original_max_position_embeddings."""


def _read_phi3(config: Config) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    served, named = config.get("partial_rotary_factor"), rope.get("partial_rotary_factor")
    if named is not None and named != (1.0 if served is None else served):
        raise InputError(
            f"partial_rotary_factor is {named} in the rotary keys of config.json, but servers read it beside "
            f"them, where it is {'missing' if served is None else served}. Set it to {named} there too."
        )
    ratio = config["max_position_embeddings"] / config.get("original_max_position_embeddings", ORIGINAL)
    if (factor := rope.get("factor")) is not None and factor != ratio:
        raise InputError(
            f"factor of longrope is {factor}; servers take {ratio:g}, max_position_embeddings by "
            f"original_max_position_embeddings, so only that can be trained."
        )
    return {}


def _phi3_attention(shape: ModelShape) -> Tensors:
    rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    yield "self_attn.qkv_proj.weight", (rows, shape.hidden_size)
    yield "self_attn.o_proj.weight", (shape.hidden_size, shape.num_heads * shape.head_size)


PHI3 = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    models="Phi-3 (4k, 128k), Phi-4 (14B), Phi-4-mini",
    read=_read_phi3,
    settings=frozenset(("sliding_window", "partial_rotary_factor", "original_max_position_embeddings")),
    # The last two, of Phi-4-mini, are read by its own code alone.
    only={"embd_pdrop": (0.0,), "resid_pdrop": (0.0,), "full_attn_mod": (1,), "interpolate_factor": (1,)},
    has_window=True,
    # transformers takes yarn for longrope, and refuses others.
    rope_kinds=("default", "longrope"),
    original_positions=ORIGINAL,
    attention=_phi3_attention,
    feed_forward=fused_swiglu,
    layer_names=LAYER_NAMES
    | {
        "self_attention.linear_qkv.weight": ("self_attn.qkv_proj.weight",),
        "mlp.linear_fc1.weight": ("mlp.gate_up_proj.weight",),
    },
    adapter_targets=(),
)

QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    models="Qwen2, Qwen2.5 (Coder, Math, R1-Distill-Qwen)",
    read=lambda config: {"has_qkv_bias": True},
    ignored=WINDOWS,
)
QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    models="Qwen3",
    read=lambda config: {"has_qk_norm": True},
    ignored=WINDOWS,
)
