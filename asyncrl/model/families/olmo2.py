"""OLMo 2: norms behind attention and feed-forward network, and over all queries and all keys of a token."""

from typing import Any

from asyncrl.model.families.family import LAYER_NAMES, Config, Family, Tensors, separate_attention, swiglu
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
