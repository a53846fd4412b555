"""Qwen3-MoE: Qwen3 with a mixture of experts in every layer."""

from typing import Any

from asyncrl.model.families.family import Config, Family
from asyncrl.model.families.qwen2 import WINDOWS
from asyncrl.model.families.qwen2_moe import SERVED
from asyncrl.model.families.qwen3 import read_norms


def _read(config: Config) -> dict[str, Any]:
    # transformers 5 writes the first name, transformers 4 the second.
    num_experts = config["num_local_experts" if "num_local_experts" in config else "num_experts"]
    return read_norms(config) | {
        "num_experts": num_experts,
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config["moe_intermediate_size"],
        "are_expert_weights_normalised": bool(config.get("norm_topk_prob", False)),
    }


QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    models="Qwen3-MoE (30B-A3B, 235B-A22B)",
    read=_read,
    settings=frozenset(
        ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
    ),
    ignored=WINDOWS,
    only=SERVED,
)
