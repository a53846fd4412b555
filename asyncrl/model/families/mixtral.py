"""Mixtral: Mistral with a mixture of experts in every layer."""

from typing import Any

from asyncrl.model.families.family import (
    LAYER_NAMES,
    Config,
    Family,
    Tensors,
    norms,
    separate_attention,
    sliding_window,
)
from asyncrl.model.shape import ModelShape

BLOCK = "block_sparse_moe"
"""Folders keep this name, whatever transformers calls the module."""


def _read(config: Config) -> dict[str, Any]:
    return {
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config["intermediate_size"],
    }


def _layer_tensors(shape: ModelShape) -> Tensors:
    assert shape.num_experts is not None
    yield from norms(shape)
    yield from separate_attention(shape)
    hidden, width = shape.hidden_size, shape.expert_ffn_size
    yield f"{BLOCK}.gate.weight", (shape.num_experts, hidden)
    for expert in range(shape.num_experts):
        for part, size in (("w1", (width, hidden)), ("w3", (width, hidden)), ("w2", (hidden, width))):
            yield f"{BLOCK}.experts.{expert}.{part}.weight", size


MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    models="Mixtral (8x7B, 8x22B)",
    read=_read,
    settings=frozenset(("num_local_experts", "num_experts_per_tok", "sliding_window")),
    # SGLang's model has an output layer of its own.
    only={"router_jitter_noise": (0.0,), "tie_word_embeddings": (False,)},
    window=sliding_window,
    layer_tensors=_layer_tensors,
    layer_names=LAYER_NAMES
    | {
        "mlp.router.weight": (f"{BLOCK}.gate.weight",),
        "mlp.experts.linear_fc1.weight": tuple(f"{BLOCK}.experts.{{}}.{x}.weight" for x in ("w1", "w3")),
        "mlp.experts.linear_fc2.weight": (f"{BLOCK}.experts.{{}}.w2.weight",),
    },
    adapter_targets=(),
)
