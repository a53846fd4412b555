"""The same steps in every layout: loss, gradient norm and weights of several ranks are those of one."""

import json
import os
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch
from fakes.launch_trainer import finish_trainer
from fakes.layout_worker import take_steps
from fakes.models import write_model, write_tokenizer
from fakes.template import Template

from asyncrl.journal.packing import unpack_halves
from asyncrl.records import TrainedTokens
from asyncrl.system.ports import free_ports

SIZES = {"num_hidden_layers": 4, "vocab_size": 41}
MODELS = {
    "qwen3": ("Qwen3", SIZES),
    "tied": ("Qwen2", SIZES | {"tie_word_embeddings": True}),
    "experts": (
        "Qwen3Moe",
        SIZES
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "shared": (
        "Qwen2Moe",
        SIZES
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"shared_expert_intermediate_size": 32},
    ),
    "glm4_moe": (
        "Glm4Moe",
        SIZES
        | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
        | {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "attention_bias": True},
    ),
    "qwen3_next": (
        "Qwen3Next",
        SIZES
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
        | {"shared_expert_intermediate_size": 32, "full_attention_interval": 2}
        | {"layer_types": ["linear_attention", "full_attention"] * 2}
        # The outputs of tiny linear attention are so small that their norm would multiply rounding.
        | {"rms_norm_eps": 1e-2}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 12},
    ),
    "deepseek": (
        "DeepseekV3",
        SIZES
        | {"num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10}
        | {"qk_rope_head_dim": 8, "v_head_dim": 14, "n_routed_experts": 8, "num_experts_per_tok": 4}
        | {"moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
        | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    ),
    "phi3": ("Phi3", SIZES | {"pad_token_id": None, "eos_token_id": 1}),
    "granite": (
        "Granite",
        SIZES
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4}
        | {"attention_multiplier": 0.2, "logits_scaling": 0.5},
    ),
}
NO_PAD = {"pad_token_id": None, "eos_token_id": 1}
SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2}
MODELS |= {
    "olmo2": ("Olmo2", SIZES | NO_PAD),
    "smollm3": ("SmolLM3", SIZES | NO_PAD | {"no_rope_layer_interval": 2}),
    "glm4": ("Glm4", SIZES | NO_PAD | {"head_dim": 16}),
    "gemma2": (
        "Gemma2",
        SIZES
        | NO_PAD
        | SLIDING
        | {"head_dim": 16, "query_pre_attn_scalar": 9}
        | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
    ),
}
MODELS["gpt_oss"] = (
    "GptOss",
    SIZES
    | NO_PAD
    | SLIDING
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "swiglu_limit": 0.5}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
)
MODELS["everything"] = MODELS["qwen3"]
MODELS["critic"] = MODELS["tied"]
MODELS["muon"] = MODELS["tied"]
MODELS["kept"] = MODELS["kept, reward"] = MODELS["tied"]
MODELS["judged"] = MODELS["sft"] = MODELS["dpo"] = MODELS["taught"] = MODELS["tied"]
MODELS["sft, experts"] = MODELS["dpo, experts"] = MODELS["experts"]
MODELS["whitened"] = MODELS["rloo"] = MODELS["turns"] = MODELS["turns, critic"] = MODELS["tied"]
MODELS["routed"] = MODELS["routed, proximal"] = MODELS["experts"]
MODELS |= {"lora": MODELS["qwen3"], "lora, tied": MODELS["tied"], "lora, experts": MODELS["experts"]}
MODELS["lora, shared"] = MODELS["shared"]
ALGORITHMS = {
    "lora": {"kl_coefficient": 0.1},
    "everything": {
        "advantage": "reinforce_pp_baseline",
        "importance_weight": "sequence_truncated",
        "rejection": ["second_moment", "token_veto"],
        "second_moment_limit": 2.0,
        "surrogate": "gspo",
        "reduction": "sequence_mean",
        "kl_coefficient": 0.1,
        "reference_refresh_steps": 1,
        "refresh_resets_optimizer": True,
        "entropy_coefficient": 0.01,
    },
    "whitened": {
        "advantage": "reinforce_pp",
        "rejection": ["second_moment"],
        "surrogate": "gmpo",
        "kl_coefficient": 0.1,
        "kl_in": "reward",
    },
    "judged": {
        "proximal": "interpolated",
        "entropy_control": "clip_cov",
        "covariance_share": 0.2,
        "clip_cov_low": 1e-3,
        "clip_cov_high": 50.0,
        "top_entropy_share": 0.5,
        "probability_damping": 0.2,
        "entropy_target": 100.0,
        "entropy_step": 0.01,
    },
    "turns": {
        "advantage": "reinforce_pp_baseline",
        "surrogate": "gspo",
        "trust_region": ["second_moment_clip", "off_policy_sequence"],
        "second_moment_limit": 2.0,
        "behavior_kl_coefficient": 0.01,
    },
    "kept": {"importance_weight": "truncated", "kl_coefficient": 0.1, "entropy_coefficient": 0.01},
    "kept, reward": {"advantage": "reinforce_pp", "kl_coefficient": 0.1, "kl_in": "reward"},
    "turns, critic": {"advantage": "gae", "gae_lambda": 0.9, "gae_gamma": 0.98},
    "rloo": {"advantage": "rloo", "kl_coefficient": 0.1, "kl_in": "reward", "reduction": "prompt_mean"},
    "routed": {"routing_replay": "rollout"},
    "routed, proximal": {"routing_replay": "proximal", "kl_coefficient": 0.1},
    "critic": {
        "advantage": "gae",
        "gae_lambda": 0.9,
        "gae_gamma": 0.98,
        "kl_coefficient": 0.1,
        "kl_in": "reward",
    },
}
"""Of a model's runs: sums over sequences and batches, several steps, a reference, gradients of entropies,
choices among all tokens of a step."""
STEPS_PER_BATCH = {
    "everything": 2,
    "critic": 2,
    "whitened": 2,
    "turns, critic": 2,
    "judged": 2,
    "routed, proximal": 2,
}
SCALING = {"judged": "ess"}
SPLIT = ("everything", "judged", "kept", "routed")
"""Models whose steps measure mismatch and staleness apart."""
MUON = {"optimizer": "muon", "muon_learning_rate": 1e-3}
LORA = {"rank": 2, "alpha": 4.0}
LOOSE = {"muon": 5e-5}
"""Largest difference of a weight, where it is not 1e-5. Muon's iterations are in bfloat16 and make directions
of a tiny gradient as large as any: here a quarter of an update of 2e-4, after three of them."""
CRITIC = {"learning_rate": 2e-2, "value_clip": 0.01}
OVERLAP = {
    "distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    # Several messages per pass, also of the smallest models.
    "ddp_bucket_size": 2000,
}
TWO_RANKS = {
    "data": ("qwen3", {}),
    "data, optimizer": ("qwen3", {"distributed_optimizer": True}),
    "tensor": ("qwen3", {"tensor": 2}),
    "tensor, tied": ("tied", {"tensor": 2}),
    "tensor, sequence": ("qwen3", {"tensor": 2, "sequence_parallel": True}),
    "pipeline": ("qwen3", {"pipeline": 2}),
    "pipeline, tied": ("tied", {"pipeline": 2}),
    "pipeline, interleaved": ("qwen3", {"pipeline": 2, "virtual_stages": 2}),
    "context": ("qwen3", {"context": 2}),
    "context, optimizer": ("tied", {"context": 2, "distributed_optimizer": True}),
    "expert": ("experts", {"expert": 2}),
    "experts, tensor": ("experts", {"tensor": 2, "sequence_parallel": True}),
    "experts, tensor, optimizer": (
        "experts",
        {"tensor": 2, "sequence_parallel": True, "distributed_optimizer": True},
    ),
    "experts, resumed as pipeline": ("experts", {"pipeline": 2}),
    "lora, shared, tensor": ("lora, shared", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "lora, experts, tensor": (
        "lora, experts",
        {"tensor": 2, "sequence_parallel": True, "distributed_optimizer": True},
    ),
    "glm4_moe, tensor, expert": ("glm4_moe", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "glm4_moe, context": ("glm4_moe", {"context": 2}),
    "glm4_moe, resumed as pipeline": ("glm4_moe", {"pipeline": 2}),
    "qwen3_next, tensor, expert": ("qwen3_next", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "qwen3_next, resumed as pipeline": ("qwen3_next", {"pipeline": 2}),
    "deepseek, tensor, expert": ("deepseek", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "deepseek, context": ("deepseek", {"context": 2}),
    "deepseek, resumed as pipeline": ("deepseek", {"pipeline": 2}),
    "mixtral, expert": ("mixtral", {"expert": 2}),
    "gpt_oss, tensor": ("gpt_oss", {"tensor": 2, "sequence_parallel": True}),
    "gpt_oss, tensor, expert": ("gpt_oss", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "gpt_oss, expert": ("gpt_oss", {"expert": 2, "distributed_optimizer": True}),
    "gpt_oss, context": ("gpt_oss", {"context": 2}),
    "gpt_oss, resumed as pipeline": ("gpt_oss", {"pipeline": 2}),
    "shared, tensor, expert": ("shared", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "shared, expert, optimizer": ("shared", {"expert": 2, "distributed_optimizer": True}),
    "shared, pipeline": ("shared", {"pipeline": 2, "virtual_stages": 2}),
    "shared, resumed as pipeline": ("shared", {"pipeline": 2}),
    "phi3, tensor": ("phi3", {"tensor": 2, "sequence_parallel": True}),
    "granite, tensor": ("granite", {"tensor": 2, "sequence_parallel": True}),
    "granite, pipeline": ("granite", {"pipeline": 2}),
    "granite, context": ("granite", {"context": 2}),
    "olmo2, tensor": ("olmo2", {"tensor": 2}),
    "olmo2, tensor, sequence": ("olmo2", {"tensor": 2, "sequence_parallel": True}),
    "olmo2, context": ("olmo2", {"context": 2}),
    "olmo2, resumed as pipeline": ("olmo2", {"pipeline": 2}),
    "smollm3, pipeline": ("smollm3", {"pipeline": 2}),
    "glm4, tensor": ("glm4", {"tensor": 2, "sequence_parallel": True}),
    "gemma2, tensor": ("gemma2", {"tensor": 2, "sequence_parallel": True}),
    "gemma2, pipeline": ("gemma2", {"pipeline": 2}),
    "gemma2, context": ("gemma2", {"context": 2}),
    "expert, pipeline": ("experts", {"pipeline": 2}),
    "routed, expert": ("routed", {"expert": 2}),
    "routed, tensor": ("routed", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "routed, pipeline": ("routed", {"pipeline": 2, "virtual_stages": 2}),
    "routed, context": ("routed", {"context": 2}),
    "routed, proximal, tensor": ("routed, proximal", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "routed, proximal, pipeline": ("routed, proximal", {"pipeline": 2}),
    "everything, data": ("everything", {}),
    "everything, tensor": ("everything", {"tensor": 2, "sequence_parallel": True}),
    "everything, pipeline": ("everything", {"pipeline": 2, "virtual_stages": 2}),
    "everything, context": ("everything", {"context": 2}),
    "everything, optimizer": ("everything", {"distributed_optimizer": True}),
    "everything, overlapped": ("everything", OVERLAP),
    # The output layer, which is never called, has a bucket of its own, as that of any large model has.
    "everything, output layer alone": ("everything", OVERLAP | {"ddp_bucket_size": 1000}),
    "expert, overlapped": ("experts", OVERLAP | {"expert": 2}),
    "context, overlapped": ("tied", OVERLAP | {"context": 2}),
    "resumed as overlapped": ("qwen3", OVERLAP),
    "rloo, data": ("rloo", {}),
    "rloo, pipeline": ("rloo", {"pipeline": 2}),
    "kept, data": ("kept", {}),
    "kept, tensor": ("kept", {"tensor": 2, "sequence_parallel": True}),
    "kept, context": ("kept", {"context": 2}),
    "kept, pipeline": ("kept, reward", {"pipeline": 2}),
    "judged, data": ("judged", {}),
    "judged, pipeline": ("judged", {"pipeline": 2}),
    "judged, context": ("judged", {"context": 2}),
    "sft, data": ("sft", {"distributed_optimizer": True}),
    "sft, pipeline": ("sft", {"pipeline": 2}),
    "sft, context": ("sft", {"context": 2}),
    "sft, tensor": ("sft", {"tensor": 2, "sequence_parallel": True}),
    "sft, expert": ("sft, experts", {"expert": 2}),
    "dpo, data": ("dpo", {}),
    "dpo, context": ("dpo", {"context": 2}),
    "dpo, pipeline": ("dpo", {"pipeline": 2}),
    "dpo, tensor": ("dpo", {"tensor": 2, "sequence_parallel": True}),
    "dpo, expert": ("dpo, experts", {"expert": 2}),
    "taught, data": ("taught", {}),
    "taught, tensor": ("taught", {"tensor": 2, "sequence_parallel": True}),
    "taught, context": ("taught", {"context": 2}),
    "taught, pipeline": ("taught", {"pipeline": 2}),
    "turns, data": ("turns", {}),
    "turns, context": ("turns", {"context": 2}),
    "muon, data": ("muon", {}),
    "muon, pipeline": ("muon", {"pipeline": 2}),
    "muon, resumed as context": ("muon", {"context": 2}),
    "lora, data, optimizer": ("lora", {"distributed_optimizer": True}),
    "lora, tensor": ("lora", {"tensor": 2}),
    "lora, tensor, sequence": ("lora", {"tensor": 2, "sequence_parallel": True}),
    "lora, pipeline": ("lora", {"pipeline": 2, "virtual_stages": 2}),
    "lora, context": ("lora", {"context": 2}),
    "lora, tied, pipeline": ("lora, tied", {"pipeline": 2}),
    "lora, overlapped": ("lora, tied", OVERLAP),
    "lora, expert": ("lora, experts", {"expert": 2}),
    "lora, resumed as pipeline": ("lora", {"pipeline": 2}),
    "lora, resumed as tensor": ("lora", {"tensor": 2, "distributed_optimizer": True}),
    "lora, resumed as experts of all": ("lora, experts", {}),
    "whitened, data": ("whitened", {}),
    "whitened, pipeline": ("whitened", {"pipeline": 2}),
    "whitened, context": ("whitened", {"context": 2}),
    "resumed as tensor, sequence": (
        "qwen3",
        {"tensor": 2, "sequence_parallel": True, "distributed_optimizer": True},
    ),
    "resumed as interleaved": (
        "qwen3",
        {"pipeline": 2, "virtual_stages": 2, "distributed_optimizer": True},
    ),
    "resumed as pipeline": ("tied", {"pipeline": 2}),
    "resumed as expert": ("experts", {"expert": 2}),
}
CRITIC_ON_TWO_RANKS = {
    "critic, data, optimizer": ("critic", {"distributed_optimizer": True}),
    "critic, tensor": ("critic", {"tensor": 2}),
    "critic, tensor, sequence": ("critic", {"tensor": 2, "sequence_parallel": True}),
    "critic, pipeline": ("critic", {"pipeline": 2}),
    "critic, interleaved": ("critic", {"pipeline": 2, "virtual_stages": 2}),
    "critic, context": ("critic", {"context": 2}),
    "critic, turns, data": ("turns, critic", {}),
    "critic, turns, pipeline": ("turns, critic", {"pipeline": 2}),
    "critic, overlapped": ("critic", OVERLAP),
    "critic, resumed as overlapped": ("critic", OVERLAP),
    "critic, resumed as tensor": ("critic", {"tensor": 2, "distributed_optimizer": True}),
    "critic, resumed as pipeline": ("critic", {"pipeline": 2}),
}
"""In processes of their own: Megatron's groups of one case after the other leave their threads behind."""
RESUMED = {
    "gpt_oss, resumed as pipeline": "gpt_oss, tensor",
    "olmo2, resumed as pipeline": "olmo2, tensor, sequence",
    "shared, resumed as pipeline": "shared, expert, optimizer",
    "experts, resumed as pipeline": "experts, tensor, optimizer",
    "glm4_moe, resumed as pipeline": "glm4_moe, tensor, expert",
    "qwen3_next, resumed as pipeline": "qwen3_next, tensor, expert",
    "deepseek, resumed as pipeline": "deepseek, tensor, expert",
    "lora, resumed as pipeline": "lora, tensor, sequence",
    "lora, resumed as tensor": "lora, data, optimizer",
    "lora, resumed as experts of all": "lora, expert",
    "muon, resumed as context": "muon, pipeline",
    "resumed as overlapped": "data, optimizer",
    "critic, resumed as overlapped": "critic, overlapped",
    "resumed as tensor, sequence": "data, optimizer",
    "resumed as interleaved": "data, optimizer",
    "resumed as pipeline": "tensor, tied",
    "resumed as expert": "expert",
    "critic, resumed as tensor": "critic, data, optimizer",
    "critic, resumed as pipeline": "critic, tensor",
}
CASES_PER_SPAWN = 10
EXHAUSTIVE = {
    *("gpt_oss, tensor", "gpt_oss, expert", "gpt_oss, context", "gpt_oss, resumed as pipeline"),
    *("experts, tensor, optimizer", "experts, resumed as pipeline", "lora, experts, tensor"),
    "lora, shared, tensor",
    *("olmo2, tensor", "olmo2, tensor, sequence", "olmo2, context", "olmo2, resumed as pipeline"),
    *("smollm3, pipeline", "glm4, tensor", "gemma2, tensor", "gemma2, pipeline", "gemma2, context"),
    *("glm4_moe, context", "glm4_moe, resumed as pipeline", "shared, tensor, expert"),
    "qwen3_next, resumed as pipeline",
    *("deepseek, tensor, expert", "deepseek, context", "deepseek, resumed as pipeline"),
    *("mixtral, expert", "shared, expert, optimizer", "shared, pipeline", "shared, resumed as pipeline"),
    *("phi3, tensor", "granite, tensor", "granite, pipeline", "granite, context"),
    *("lora, data, optimizer", "lora, tensor", "lora, pipeline", "lora, context"),
    *("lora, tied, pipeline", "lora, overlapped", "lora, resumed as tensor"),
    "lora, resumed as experts of all",
    *("expert, overlapped", "context, overlapped", "critic, overlapped", "critic, resumed as overlapped"),
    "resumed as overlapped",
    *("turns, context", "critic, turns, pipeline", "judged, pipeline", "judged, context"),
    *("routed, expert", "routed, tensor", "routed, pipeline", "routed, context"),
    *("routed, proximal, tensor", "routed, proximal, pipeline"),
    *("kept, data", "kept, pipeline", "sft, pipeline", "sft, data", "dpo, data", "dpo, pipeline"),
    *("sft, tensor", "sft, expert", "dpo, tensor", "dpo, expert"),
    *("taught, data", "taught, context", "taught, pipeline"),
    *("data", "tensor", "pipeline", "context, optimizer", "expert, pipeline"),
    *("everything, data", "everything, tensor", "rloo, data", "whitened, data", "whitened, pipeline"),
    *("resumed as interleaved", "resumed as pipeline"),
    *("critic, tensor", "critic, pipeline", "critic, resumed as pipeline"),
    *("muon, pipeline", "muon, resumed as context"),
    *("tensor, tied", "pipeline, interleaved", "context", "everything, optimizer", "rloo, pipeline"),
}
"""Parts of what the other cases put together."""
FOUR_RANKS = {
    "tensor, pipeline, optimizer": ("qwen3", {"tensor": 2, "pipeline": 2, "distributed_optimizer": True}),
    "tensor, sequence, context": ("qwen3", {"tensor": 2, "context": 2, "sequence_parallel": True}),
    "tensor, sequence, data, optimizer": (
        "tied",
        {"tensor": 2, "sequence_parallel": True, "distributed_optimizer": True},
    ),
    "interleaved, data": ("tied", {"pipeline": 2, "virtual_stages": 2, "distributed_optimizer": True}),
    "interleaved, data, overlapped": ("tied", OVERLAP | {"pipeline": 2, "virtual_stages": 2}),
    "tensor, sequence, data, overlapped": ("qwen3", OVERLAP | {"tensor": 2, "sequence_parallel": True}),
    "pipeline of four": ("qwen3", {"pipeline": 4}),
    # Two key-value heads among four ranks.
    "context of four": ("qwen3", {"context": 4}),
    "pipeline, context": ("tied", {"pipeline": 2, "context": 2}),
    "tensor, sequence, expert, data": (
        "experts",
        {"tensor": 2, "sequence_parallel": True, "expert": 2, "distributed_optimizer": True},
    ),
    "experts, tensor, sequence, data, optimizer": (
        "experts",
        {"tensor": 2, "sequence_parallel": True, "distributed_optimizer": True},
    ),
    "expert, data": ("experts", {"expert": 2}),
    "critic, tensor, pipeline, optimizer": (
        "critic",
        {"tensor": 2, "pipeline": 2, "distributed_optimizer": True},
    ),
    "critic, pipeline, context": ("critic", {"pipeline": 2, "context": 2}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    written = {name: write_model(root / name, family, **sizes) for name, (family, sizes) in MODELS.items()}
    for folder in written.values():
        # The last row is past the tokenizer: no layout samples it.
        write_tokenizer(folder, range(SIZES["vocab_size"] - 1))
    return written


@pytest.fixture(scope="module")
def alone(
    request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What one process makes of each model that a selected test asks for."""
    root = tmp_path_factory.mktemp("alone")
    every = TWO_RANKS | CRITIC_ON_TWO_RANKS
    wanted = {model for model, _ in asked(every, request).values()}
    if any(item.name == test_four_ranks_take_the_steps_of_one.__name__ for item in request.session.items):
        wanted |= {model for model, _ in FOUR_RANKS.values()}
    for name in wanted:
        algorithm = ALGORITHMS.get(name, {})
        take_steps(
            models[name],
            trainer_keys(name),
            root / name,
            algorithm=algorithm,
            critic=CRITIC,
            turns=has_turns(name),
            stage=stage_of(name),
            kept=name.startswith("kept"),
            top=top_of(name),
            routed=name == "routed",
            lora=lora_of(name),
        )
    return root


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest,
    models: dict[str, Path],
    template: Template,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of what two ranks make of the cases that the test's parameter is."""
    cases = asked(request.param, request)
    return run_cases(cases, 2, models, template, tmp_path_factory.mktemp("together"))


def asked(cases: dict[str, tuple[str, dict]], request: pytest.FixtureRequest) -> dict[str, tuple[str, dict]]:
    """The cases of the tests that were selected, and those that they resume from."""
    ours = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["name"] for item in ours if hasattr(item, "callspec")}
    names |= {RESUMED[name] for name in names & RESUMED.keys()}
    return {name: case for name, case in cases.items() if name in names}


def parameters_of(cases: dict[str, tuple[str, dict]]) -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in EXHAUSTIVE)) for name in cases]


def has_turns(model: str) -> bool:
    return model.startswith("turns") or stage_of(model) == "sft"


def stage_of(model: str) -> str:
    return stage if (stage := model.split(",")[0]) in ("sft", "dpo") else "rl"


def top_of(model: str) -> int:
    return 5 if model == "taught" else 0


def trainer_keys(model: str) -> dict[str, object]:
    return {
        "optimizer_steps_per_batch": STEPS_PER_BATCH.get(model, 1),
        "learning_rate_scaling": SCALING.get(model, "none"),
        "splits_staleness": model in SPLIT,
        **(MUON if model == "muon" else {}),
        **({"router": {"bias_update_rate": 0.01}} if model in ("glm4_moe", "deepseek") else {}),
    }


def lora_of(model: str) -> dict[str, float] | None:
    return LORA if model.startswith("lora") else None


def run_cases(
    cases: dict[str, tuple[str, dict]],
    num_ranks: int,
    models: dict[str, Path],
    template: Template,
    root: Path,
) -> Path:
    """Some of the cases in one spawn: each leaves the threads of its groups behind, and a thousand threads
    slow those that follow."""
    names = list(cases)
    for first in range(0, len(names), CASES_PER_SPAWN):
        part = {name: cases[name] for name in names[first : first + CASES_PER_SPAWN]}
        _spawn(part, num_ranks, models, template, root)
    return root


def _spawn(
    cases: dict[str, tuple[str, dict]],
    num_ranks: int,
    models: dict[str, Path],
    template: Template,
    root: Path,
) -> None:
    arguments = [
        {
            "name": name,
            "model": str(models[model]),
            "trainer": {"num_processes": num_ranks, "parallel": sizes} | trainer_keys(model),
            "algorithm": ALGORITHMS.get(model, {}),
            "critic": CRITIC,
            "saves": name in RESUMED.values(),
            "resumes": RESUMED.get(name),
            "turns": has_turns(model),
            "stage": stage_of(model),
            "kept": model.startswith("kept"),
            "top": top_of(model),
            "routed": model == "routed",
            "lora": lora_of(model),
        }
        for name, (model, sizes) in cases.items()
    ]
    environment = os.environ | {"WORLD_SIZE": str(num_ranks), "MASTER_PORT": str(free_ports(1)[0])}
    log = root / "log"
    with log.open("ab") as output:
        ranks = [
            template.start(
                "fakes.layout_worker",
                [json.dumps(arguments), str(root)],
                environment=environment | {"RANK": str(rank)},
                output=output,
            )
            for rank in range(num_ranks)
        ]
    assert finish_trainer(ranks, timeout_seconds=300) == [0] * num_ranks, log.read_text()[-6000:]


def assert_same_steps(name: str, got: Path, wanted: Path) -> None:
    found, expected = (json.loads(path.with_suffix(".json").read_text()) for path in (got, wanted))
    # A case that was resumed took the last steps only.
    assert found
    for left, right in zip(found, expected[-len(found) :], strict=True):
        assert left["loss"] == pytest.approx(right["loss"], abs=1e-5)
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-4)
        for metric in left.keys() - {"num_packed_tokens"}:
            assert left[metric] == pytest.approx(right[metric], rel=1e-4, abs=1e-5, nan_ok=True), metric
    assert_same_tokens(got, wanted)
    found, expected = (json.loads(path.with_suffix(".spike").read_text()) for path in (got, wanted))
    assert found[:2] == expected[:2] and found[2] == pytest.approx(expected[2], rel=1e-3)
    models = sorted(path.relative_to(wanted) for path in wanted.rglob("model.safetensors"))
    for model in models:
        found, expected = (safetensors.torch.load_file(path / model) for path in (got, wanted))
        assert found.keys() == expected.keys()
        worst = {key: (found[key] - tensor).abs().max().item() for key, tensor in expected.items()}
        limit = LOOSE.get(wanted.name, 1e-5)
        assert max(worst.values()) < limit, (model, max(worst, key=worst.get))


def assert_same_tokens(got: Path, wanted: Path) -> None:
    """What is kept of single tokens comes from whichever ranks had them."""
    found, expected = (
        msgspec.msgpack.decode(path.with_suffix(".tokens").read_bytes(), type=list[TrainedTokens])
        for path in (got, wanted)
    )
    assert found
    for left, right in zip(found, expected[-len(found) :], strict=True):
        assert left.trajectory_id == right.trajectory_id
        assert (left.advantages is None) == (right.advantages is None)
        for name in ("log_ratios", "entropies", "advantages"):
            values = [unpack_halves(getattr(each, name) or b"") for each in (left, right)]
            assert values[0] == pytest.approx(values[1], abs=4e-3), (left.trajectory_id, name)


@pytest.mark.parametrize("together", [TWO_RANKS], indirect=True, ids=["policy"])
@pytest.mark.parametrize("name", parameters_of(TWO_RANKS))
def test_two_ranks_take_the_steps_of_one(name: str, alone: Path, together: Path):
    assert_same_steps(name, together / name, alone / TWO_RANKS[name][0])


@pytest.mark.parametrize("together", [CRITIC_ON_TWO_RANKS], indirect=True, ids=["critic"])
@pytest.mark.parametrize("name", parameters_of(CRITIC_ON_TWO_RANKS))
@pytest.mark.exhaustive
def test_two_ranks_train_the_critic_of_one(name: str, alone: Path, together: Path):
    wanted = alone / CRITIC_ON_TWO_RANKS[name][0]
    assert (wanted / "critic" / "model.safetensors").exists()
    assert_same_steps(name, together / name, wanted)


@pytest.mark.slow
def test_four_ranks_take_the_steps_of_one(
    alone: Path, models: dict[str, Path], template: Template, tmp_path_factory: pytest.TempPathFactory
):
    root = run_cases(FOUR_RANKS, 4, models, template, tmp_path_factory.mktemp("four"))
    for name, (model, _) in FOUR_RANKS.items():
        assert_same_steps(name, root / name, alone / model)


def test_the_steps_move_every_weight(alone: Path, models: dict[str, Path]):
    for trained in alone.glob("*/model.safetensors"):
        before = safetensors.torch.load_file(models[trained.parent.name] / "model.safetensors")
        after = safetensors.torch.load_file(trained)
        still = [key for key, tensor in after.items() if torch.allclose(tensor, before[key], atol=1e-4)]
        if lora_of(trained.parent.name) is None:
            assert not still
        else:
            assert all("_proj" in key for key in after.keys() - set(still))
            assert not [key for key in still if "_proj" in key]
