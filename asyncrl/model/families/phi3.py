"""Phi-3 and Phi-4: one matrix for queries, keys and values, and one for gate and up.

The versions for 128k tokens (longrope) and Phi-4-mini (which rotates a part of each head) are refused.
"""

from asyncrl.model.families.family import LAYER_NAMES, Family, Tensors, fused_swiglu, norms, sliding_window
from asyncrl.model.shape import ModelShape


def _layer_tensors(shape: ModelShape) -> Tensors:
    yield from norms(shape)
    rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    yield "self_attn.qkv_proj.weight", (rows, shape.hidden_size)
    yield "self_attn.o_proj.weight", (shape.hidden_size, shape.num_heads * shape.head_size)
    yield from fused_swiglu(shape)


PHI3 = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    models="Phi-3 (4k), Phi-4 (14B)",
    settings=frozenset(("sliding_window",)),
    # Read by longrope alone.
    ignored=frozenset(("original_max_position_embeddings",)),
    only={"embd_pdrop": (0.0,), "resid_pdrop": (0.0,)},
    window=sliding_window,
    layer_tensors=_layer_tensors,
    layer_names=LAYER_NAMES
    | {
        "self_attention.linear_qkv.weight": ("self_attn.qkv_proj.weight",),
        "mlp.linear_fc1.weight": ("mlp.gate_up_proj.weight",),
    },
    takes_adapters=False,
)
