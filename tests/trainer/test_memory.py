"""The arithmetic of `asyncrl plan` against what the trainer really allocates."""

from pathlib import Path

import pytest
import torch
from fakes.models import random_batch, write_model
from fakes.recipes import make_recipe

from asyncrl.model.folder import check_model_folder, read_shape
from asyncrl.model.memory import RankMemory, parameters_by_kind, rank_memory
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.packing.batch import MicroBatch, rank_micro_batches
from asyncrl.trainer.parts.table import build_learner
from asyncrl.trainer.step.learner import Learner

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
EXPERTS |= {"shared_expert_intermediate_size": 48}
GLM4_MOE = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 16}
GLM4_MOE |= {"first_k_dense_replace": 1}
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "pad_token_id": None}
GPT_OSS |= {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}
NEXT = EXPERTS | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "full_attention_interval": 2}
NEXT |= {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_hidden_layers": 3}
NEXT |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DEEPSEEK = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 24}
DEEPSEEK |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8}
DEEPSEEK |= {"num_experts_per_tok": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
DEEPSEEK |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, "topk_group": 8}
FAMILIES = {"kv_lora_rank": "DeepseekV3", "linear_num_key_heads": "Qwen3Next"}
"""Key of a configuration -> family, the first that is there."""
FAMILIES |= {"num_experts": "Qwen2Moe", "n_routed_experts": "Glm4Moe", "num_local_experts": "GptOss"}


def learner_of(folder: Path, dtype: str = "float32") -> Learner:
    return build_learner(check_model_folder(folder), make_recipe(folder, model={"dtype": dtype}))


def memory_of(learner: Learner, dtype: str = "float32", tokens: int = 1) -> RankMemory:
    return rank_memory(learner.shape, dtype=dtype, tokens_per_micro_batch=tokens)


def num_bytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("Qwen3", {}),
        ("Qwen3", {"tie_word_embeddings": True}),
        ("Qwen2", {}),
        ("Llama", {"num_hidden_layers": 3}),
        ("Qwen2Moe", EXPERTS),
        ("GptOss", GPT_OSS),
        ("Qwen3Next", NEXT),
    ],
)
def test_parameters_are_those_of_the_model_that_is_trained(tmp_path: Path, family: str, overrides: dict):
    folder = write_model(tmp_path, family, **overrides)
    learner = learner_of(folder)
    counts = parameters_by_kind(read_shape(folder))
    assert sum(counts.values()) == sum(p.numel() for p in learner.model.parameters())
    norms = [p for name, p in learner.model.named_parameters() if "norm" in name]
    assert counts["norms"] == sum(p.numel() for p in norms)
    assert (counts["output layer"] == 0) == bool(overrides.get("tie_word_embeddings"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_is_as_large_as_planned(tmp_path: Path, dtype: str):
    learner = learner_of(write_model(tmp_path / "model"), dtype)
    learner.step(random_batch(0))
    planned = memory_of(learner, dtype)
    parameters = list(learner.model.parameters())
    assert num_bytes(parameters) == planned.weights
    assert num_bytes(p.main_grad for p in parameters) == planned.gradients
    masters = [p for group in learner.optimizer.param_groups for p in group["params"]]
    inner = learner.optimizer.chained_optimizers[0].optimizer
    moments = [value for state in inner.state.values() for value in state.values() if value.numel() > 1]
    own = masters if dtype == "bfloat16" else []
    assert num_bytes([*moments, *own]) == planned.optimizer
    # A checkpoint is written from the copy: their sizes differ by names and headers alone.
    checkpoints = Checkpoints(tmp_path / "checkpoints", num_kept=1)
    written = (checkpoints.save(learner, 1) / "__0_0.distcp").stat().st_size
    assert planned.checkpoint_copy < written < 1.5 * planned.checkpoint_copy


def held_bytes(learner: Learner, micro: MicroBatch) -> int:
    """What autograd holds of a pass, without the weights."""
    own = {p.untyped_storage().data_ptr() for p in learner.model.parameters()}
    held: dict[int, torch.UntypedStorage] = {}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[id(storage)] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        learner.model[0](micro, temperature=1.0)
    # Norms that are computed again have given their memory back.
    return sum({each.data_ptr(): each.nbytes() for each in held.values() if each.nbytes()}.values())


@pytest.mark.parametrize("overrides", [{}, EXPERTS, NEXT, DEEPSEEK])
def test_recomputation_holds_what_the_plan_says(tmp_path: Path, overrides: dict):
    family = next((name for key, name in FAMILIES.items() if key in overrides), "Qwen3")
    folder = write_model(tmp_path, family, **{"intermediate_size": 128, **overrides})
    batch = random_batch(0, num_groups=8, group_size=8, longest=60)
    (micro,) = rank_micro_batches(batch, budget_tokens=10**6, rank=0, num_ranks=1)
    held = {}
    for kind in ("none", "selective", "full"):
        trainer = {"recompute": kind}
        learner = build_learner(check_model_folder(folder), make_recipe(folder, trainer=trainer))
        held[kind] = held_bytes(learner, micro)
    planned = memory_of(learner, tokens=len(micro.tokens))
    # What one layer holds that is computed again comes and goes in the backward pass.
    again = (planned.activations - planned.activations_selective) / (learner.shape.num_layers - 1)
    kept = planned.activations_selective - again
    assert held["selective"] / 1.5 < kept < 1.5 * held["selective"], (kept, held)
    # Linear attention keeps most of what it computes with.
    assert held["full"] < held["selective"] < (0.9 if overrides is NEXT else 0.6) * held["none"]


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4},
        {"num_attention_heads": 8, "num_key_value_heads": 8},
        EXPERTS,
        GLM4_MOE,
        GPT_OSS,
        NEXT,
        DEEPSEEK,
        DEEPSEEK | {"num_attention_heads": 8, "num_key_value_heads": 8, "qk_nope_head_dim": 32},
        EXPERTS | {"hidden_size": 64, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 192},
    ],
)
def test_activations_are_within_one_and_a_half_of_what_autograd_holds(tmp_path: Path, overrides: dict):
    family = next((name for key, name in FAMILIES.items() if key in overrides), "Qwen3")
    learner = learner_of(write_model(tmp_path, family, **overrides))
    batch = random_batch(0, num_groups=8, group_size=8, longest=60)
    (micro,) = rank_micro_batches(batch, budget_tokens=10**6, rank=0, num_ranks=1)
    measured = held_bytes(learner, micro)
    planned = memory_of(learner, tokens=len(micro.tokens)).activations
    assert measured / 1.5 < planned < 1.5 * measured, (measured, planned)
