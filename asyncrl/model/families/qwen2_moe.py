"""Qwen2-MoE: Qwen2 with experts, of which each token passes one beside those that it is routed to."""

from typing import Any

from asyncrl.model.families.family import Config, Family
from asyncrl.model.families.qwen2 import WINDOWS

SERVED: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "tie_word_embeddings": (False,),
}
"""SGLang's models have experts in every layer, and an output layer of their own."""


def _read(config: Config) -> dict[str, Any]:
    return {
        "has_qkv_bias": config.get("qkv_bias", True),
        "num_experts": config["num_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config["moe_intermediate_size"],
        "are_expert_weights_normalised": bool(config.get("norm_topk_prob", False)),
        "shared_expert_size": config["shared_expert_intermediate_size"],
        "has_shared_expert_gate": True,
    }


QWEN2_MOE = Family(
    architecture="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    models="Qwen1.5-MoE (A2.7B), Qwen2-MoE (57B-A14B)",
    read=_read,
    settings=frozenset(
        (
            *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
            *("shared_expert_intermediate_size", "qkv_bias"),
        )
    ),
    ignored=WINDOWS,
    only=SERVED,
)
