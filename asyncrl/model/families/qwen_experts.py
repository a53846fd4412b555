"""Qwen's mixtures of experts: Qwen2, Qwen3 and Qwen3-Next. Three of four layers of Qwen3-Next have linear
attention, the others attention with an output gate.

The layer for predicting several tokens, which published folders of Qwen3-Next have (`mtp`), is not trained:
transformers does not read it either.
"""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import LAYER_NAMES, Config, Family, Tensors, attention, experts
from asyncrl.model.families.llama import WINDOWS
from asyncrl.model.shape import DeltaNet, ModelShape

SERVED: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "tie_word_embeddings": (False,),
}
"""SGLang's models have experts in every layer, and an output layer of their own."""
SETTINGS = frozenset(("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"))


def _read_experts(config: Config, *, normalises: bool = False, count: str = "num_experts") -> dict[str, Any]:
    """`normalises`: what transformers takes where config.json has no norm_topk_prob."""
    normalised = {"are_expert_weights_normalised": bool(config.get("norm_topk_prob", normalises))}
    return experts(config, count) | normalised


def _read_shared(config: Config) -> dict[str, Any]:
    return {
        "shared_expert_size": config["shared_expert_intermediate_size"],
        "has_shared_expert_gate": True,
    }


def _read_qwen2_moe(config: Config) -> dict[str, Any]:
    return _read_experts(config) | _read_shared(config) | {"has_qkv_bias": config.get("qkv_bias", True)}


QWEN2_MOE = Family(
    architecture="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    models="Qwen1.5-MoE (A2.7B), Qwen2-MoE (57B-A14B)",
    read=_read_qwen2_moe,
    settings=SETTINGS | {"shared_expert_intermediate_size", "qkv_bias"},
    ignored=WINDOWS,
    only=SERVED,
)


def _read_qwen3_moe(config: Config) -> dict[str, Any]:
    # transformers 5 writes the first name, transformers 4 the second.
    count = "num_local_experts" if "num_local_experts" in config else "num_experts"
    return _read_experts(config, count=count) | {"has_qk_norm": True}


QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    models="Qwen3-MoE (30B-A3B, 235B-A22B)",
    read=_read_qwen3_moe,
    settings=SETTINGS | {"num_local_experts"},
    ignored=WINDOWS,
    only=SERVED,
)


SIZES = (
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)


def _implied(config: Config) -> dict[str, Any]:
    """full_attention_interval: up to the first layer of full attention; without any 4, as in transformers."""
    kinds = config.get("layer_types") or ()
    return {
        "full_attention_interval": next((i for i, kind in enumerate(kinds, 1) if kind == "full_attention"), 4)
    }


def _delta_layers(config: Config) -> tuple[int, ...]:
    """Layers, counted from 0, of linear attention: all but each `full_attention_interval`th."""
    interval, kinds = config["full_attention_interval"], config.get("layer_types")
    usual = tuple(i for i in range(config["num_hidden_layers"]) if (i + 1) % interval)
    if kinds and usual != tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention"):
        raise InputError(
            f"layer_types of Qwen3-Next are not those of full_attention_interval {interval}, which servers "
            f"read alone: linear_attention in all layers but every {interval}th."
        )
    return usual


def _read(config: Config) -> dict[str, Any]:
    net = DeltaNet(*(config[key] for key in SIZES))
    if net.num_value_heads % net.num_key_heads:
        raise InputError(
            f"linear_num_value_heads is {net.num_value_heads}, expected a multiple of linear_num_key_heads "
            f"({net.num_key_heads})."
        )
    return {
        "delta_net": net,
        "delta_layers": _delta_layers(config),
        "has_output_gate": True,
        "has_qk_norm": True,
        "norms_add_one": True,
        **_read_experts(config, normalises=True),
        **_read_shared(config),
    }


LINEAR = "linear_attn."


def _attention(shape: ModelShape) -> Tensors:
    net, hidden = shape.delta_net, shape.hidden_size
    if not shape.delta_layers:
        yield from attention(shape)
        return
    assert net is not None
    yield LINEAR + "in_proj_qkvz.weight", (2 * (net.key_size + net.value_size), hidden)
    yield LINEAR + "in_proj_ba.weight", (2 * net.num_value_heads, hidden)
    yield LINEAR + "conv1d.weight", (net.num_channels(), 1, net.conv_width)
    yield LINEAR + "dt_bias", (net.num_value_heads,)
    yield LINEAR + "A_log", (net.num_value_heads,)
    yield LINEAR + "norm.weight", (net.value_head_size,)
    yield LINEAR + "out_proj.weight", (hidden, net.value_size)


QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    models="Qwen3-Next (80B-A3B)",
    read=_read,
    settings=SETTINGS
    | {*SIZES, "full_attention_interval", "partial_rotary_factor", "shared_expert_intermediate_size"},
    only=SERVED,
    layer_types=frozenset(("full_attention", "linear_attention")),
    serves_old_rotary_keys=True,
    implied=_implied,
    rotated_share=0.25,
    attention=_attention,
    layer_names=LAYER_NAMES
    | {
        f"self_attention.{name}": (LINEAR + name,)
        for name in ("in_proj_qkvz.weight", "in_proj_ba.weight", "dt_bias", "A_log", "out_proj.weight")
    }
    | {
        "self_attention.conv_weight": (LINEAR + "conv1d.weight",),
        "self_attention.norm_weight": (LINEAR + "norm.weight",),
    },
    unread=r"mtp\..*",
)
