"""Phi-3 and Phi-4: one matrix for queries, keys and values, and one for gate and up.

The versions for 128k tokens and Phi-4-mini (longrope) are trained at up to `original_max_position_embeddings`
tokens, where transformers and SGLang divide the angles by the same factors.
"""

from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    fused_swiglu,
    norms,
    sliding_window,
)
from asyncrl.model.shape import ModelShape

ORIGINAL = 4096
"""transformers' default of original_max_position_embeddings."""


def _read(config: Config) -> dict[str, Any]:
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


def _layer_tensors(shape: ModelShape) -> Tensors:
    yield from norms(shape)
    rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    yield "self_attn.qkv_proj.weight", (rows, shape.hidden_size)
    yield "self_attn.o_proj.weight", (shape.hidden_size, shape.num_heads * shape.head_size)
    yield from fused_swiglu(shape)


PHI3 = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    models="Phi-3 (4k, 128k), Phi-4 (14B), Phi-4-mini",
    read=_read,
    settings=frozenset(("sliding_window", "partial_rotary_factor", "original_max_position_embeddings")),
    # The last two, of Phi-4-mini, are read by its own code alone.
    only={"embd_pdrop": (0.0,), "resid_pdrop": (0.0,), "full_attn_mod": (1,), "interpolate_factor": (1,)},
    window=sliding_window,
    # transformers takes yarn for longrope, and refuses others.
    rope_kinds=("default", "longrope"),
    original_positions=ORIGINAL,
    layer_tensors=_layer_tensors,
    layer_names=LAYER_NAMES
    | {
        "self_attention.linear_qkv.weight": ("self_attn.qkv_proj.weight",),
        "mlp.linear_fc1.weight": ("mlp.gate_up_proj.weight",),
    },
    adapter_targets=(),
)
