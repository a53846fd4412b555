"""gpt-oss: attention sinks, every other layer sliding, biases everywhere, experts of clamped SwiGLU.

transformers and SGLang keep all experts of a layer in one tensor.
"""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    norms,
    separate_attention,
    sliding_layers,
)
from asyncrl.model.shape import ModelShape

EXPERTS = "mlp.experts."


def _read(config: Config) -> dict[str, Any]:
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        raise InputError("config.json has neither rope_parameters nor rope_scaling, which gpt-oss needs.")
    return {
        "head_size": config["head_dim"],
        "has_qkv_bias": True,
        "has_linear_biases": True,
        "has_sinks": True,
        "window": config["sliding_window"],
        "sliding_layers": sliding_layers(config, default=lambda layer: layer % 2 == 0),
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config["intermediate_size"],
        "activation": "quick_gelu",
        "gate_limit": config["swiglu_limit"],
        "gate_offset": 1.0,
    }


def _layer_tensors(shape: ModelShape) -> Tensors:
    assert shape.num_experts is not None
    yield from norms(shape)
    yield from separate_attention(shape)
    hidden, width, count = shape.hidden_size, shape.expert_ffn_size, shape.num_experts
    yield "self_attn.o_proj.bias", (hidden,)
    yield "self_attn.sinks", (shape.num_heads,)
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
    read=_read,
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
    layer_types=frozenset(("full_attention", "sliding_attention")),
    rope_theta=150000.0,
    layer_tensors=_layer_tensors,
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
