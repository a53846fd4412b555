"""OLMo 2 and 3: norms behind attention and feed-forward network, and over all queries and all keys."""

from typing import Any

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

NAMES_BEHIND = {
    "self_attn_bda.norm.weight": ("post_attention_layernorm.weight",),
    "mlp_bda.norm.weight": ("post_feedforward_layernorm.weight",),
}
"""Names of the norms behind attention and feed-forward network."""


def read_norms(config: Config) -> dict[str, Any]:
    return {"norm_places": "behind", "has_wide_qk_norm": True}


def layer_tensors(shape: ModelShape) -> Tensors:
    yield from separate_attention(shape)
    for (name,) in NAMES_BEHIND.values():
        yield name, (shape.hidden_size,)
    yield from swiglu("mlp.", shape.hidden_size, shape.ffn_size)


OLMO2 = Family(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    models="OLMo 2",
    read=read_norms,
    layer_tensors=layer_tensors,
    layer_names=LAYER_NAMES | NAMES_BEHIND,
)


# SGLang 0.5.23 has a configuration of its own for it, with the rotary keys of transformers 4.
def _read(config: Config) -> dict[str, Any]:
    return read_norms(config) | {
        "window": config["sliding_window"],
        "sliding_layers": sliding_layers(config, default=lambda layer: (layer + 1) % 4 != 0),
    }


OLMO3 = Family(
    architecture="Olmo3ForCausalLM",
    model_type="olmo3",
    models="OLMo 3",
    read=_read,
    settings=frozenset(("sliding_window",)),
    layer_types=frozenset(("full_attention", "sliding_attention")),
    rope_theta=500000.0,
    sliding_rope_theta=500000.0,
    serves_old_rotary_keys=True,
    layer_tensors=layer_tensors,
    layer_names=LAYER_NAMES | NAMES_BEHIND,
)
