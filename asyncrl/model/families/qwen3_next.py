"""Qwen3-Next: linear attention in three of four layers, attention with an output gate in the others, experts.

The layer for predicting several tokens, which published folders have (`mtp`), is not trained: transformers
does not read it either.
"""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    feed_forward,
    norms,
    separate_attention,
)
from asyncrl.model.families.qwen import SERVED
from asyncrl.model.shape import DeltaNet, ModelShape

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
        "num_experts": config["num_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config["moe_intermediate_size"],
        "are_expert_weights_normalised": bool(config.get("norm_topk_prob", True)),
        "shared_expert_size": config["shared_expert_intermediate_size"],
        "has_shared_expert_gate": True,
    }


def layer_tensors(shape: ModelShape) -> Tensors:
    yield from norms(shape)
    if shape.delta_layers:
        assert shape.delta_net is not None
        yield from linear_attention(shape.delta_net, shape.hidden_size)
    else:
        yield from separate_attention(shape)
    yield from feed_forward(shape)


def linear_attention(net: DeltaNet, hidden: int) -> Tensors:
    prefix = "linear_attn."
    yield prefix + "in_proj_qkvz.weight", (2 * (net.key_size + net.value_size), hidden)
    yield prefix + "in_proj_ba.weight", (2 * net.num_value_heads, hidden)
    yield prefix + "conv1d.weight", (net.num_channels(), 1, net.conv_width)
    yield prefix + "dt_bias", (net.num_value_heads,)
    yield prefix + "A_log", (net.num_value_heads,)
    yield prefix + "norm.weight", (net.value_head_size,)
    yield prefix + "out_proj.weight", (hidden, net.value_size)


NAMES = LAYER_NAMES | {
    "self_attention.in_proj_qkvz.weight": ("linear_attn.in_proj_qkvz.weight",),
    "self_attention.in_proj_ba.weight": ("linear_attn.in_proj_ba.weight",),
    "self_attention.conv_weight": ("linear_attn.conv1d.weight",),
    "self_attention.dt_bias": ("linear_attn.dt_bias",),
    "self_attention.A_log": ("linear_attn.A_log",),
    "self_attention.norm_weight": ("linear_attn.norm.weight",),
    "self_attention.out_proj.weight": ("linear_attn.out_proj.weight",),
}

QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    models="Qwen3-Next (80B-A3B)",
    read=_read,
    settings=frozenset(
        (
            *SIZES,
            *("full_attention_interval", "partial_rotary_factor", "num_experts", "num_experts_per_tok"),
            *("moe_intermediate_size", "norm_topk_prob", "shared_expert_intermediate_size"),
        )
    ),
    only=SERVED,
    layer_types=frozenset(("full_attention", "linear_attention")),
    serves_old_rotary_keys=True,
    implied=_implied,
    rotated_share=0.25,
    layer_tensors=layer_tensors,
    layer_names=NAMES,
    unread=r"mtp\..*",
)
