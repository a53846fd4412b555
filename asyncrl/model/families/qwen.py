"""Qwen2, Qwen2.5 and Qwen3, dense and with a mixture of experts."""

from typing import Any

from asyncrl.model.families.family import Config, Family

WINDOWS = frozenset(("sliding_window", "max_window_layers"))
"""Without effect, because use_sliding_window must be false."""


def _read(config: Config) -> dict[str, Any]:
    return {"has_qkv_bias": True}


QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    models="Qwen2, Qwen2.5 (Coder, Math, R1-Distill-Qwen)",
    read=_read,
    ignored=WINDOWS,
)


def read_norms(config: Config) -> dict[str, Any]:
    return {"has_qk_norm": True}


QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    models="Qwen3",
    read=read_norms,
    ignored=WINDOWS,
)


SERVED: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "tie_word_embeddings": (False,),
}
"""SGLang's models have experts in every layer, and an output layer of their own."""


def _read_qwen2_moe(config: Config) -> dict[str, Any]:
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
    read=_read_qwen2_moe,
    settings=frozenset(
        (
            *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
            *("shared_expert_intermediate_size", "qkv_bias"),
        )
    ),
    ignored=WINDOWS,
    only=SERVED,
)


def _read_qwen3_moe(config: Config) -> dict[str, Any]:
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
    read=_read_qwen3_moe,
    settings=frozenset(
        ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
    ),
    ignored=WINDOWS,
    only=SERVED,
)
