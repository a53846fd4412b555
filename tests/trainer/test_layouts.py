"""The same steps in every layout: loss, gradient norm and weights of several ranks are those of one.

The layouts of each family: test_family_layouts.py.
"""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from fakes.layout_runs import assert_same_steps, run_cases
from fakes.layout_worker import take_steps
from fakes.models import write_tokenizer
from fakes.template import Template
from families.known import tiny, write_tiny

SIZES = {"num_hidden_layers": 4, "vocab_size": 41}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3ForCausalLM", SIZES),
    "tied": ("Qwen2ForCausalLM", SIZES | {"tie_word_embeddings": True}),
    "experts": ("Qwen3MoeForCausalLM", SIZES),
    "shared": ("Qwen2MoeForCausalLM", SIZES),
    "glm4_moe": ("Glm4MoeForCausalLM", SIZES),
    "qwen3_next": ("Qwen3NextForCausalLM", SIZES),
    "deepseek": ("DeepseekV3ForCausalLM", SIZES),
    "gpt_oss": ("GptOssForCausalLM", SIZES),
    "olmo2": ("Olmo2ForCausalLM", SIZES),
}
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
    "lora": {"kl": {"coefficient": 0.1}},
    "everything": {
        "advantage": "reinforce_pp_baseline",
        "importance_weight": "sequence_truncated",
        "rejection": [{"name": "second_moment", "limit": 2.0}, "token_veto"],
        "surrogate": "gspo",
        "reduction": "sequence_mean",
        "kl": {"coefficient": 0.1, "refresh_steps": 1, "refresh_resets_optimizer": True},
        "entropy_bonus": {"coefficient": 0.01},
    },
    "whitened": {
        "advantage": "reinforce_pp",
        "rejection": ["second_moment"],
        "surrogate": "gmpo",
        "kl": {"coefficient": 0.1, "place": "reward"},
    },
    "judged": {
        "proximal": "interpolated",
        "entropy_control": {"name": "clip_cov", "share": 0.2, "low": 1e-3, "high": 50.0},
        "top_entropy_share": 0.5,
        "probability_damping": 0.2,
        "entropy_bonus": {"target": 100.0, "step": 0.01},
    },
    "turns": {
        "advantage": "reinforce_pp_baseline",
        "surrogate": "gspo",
        "trust_region": [{"name": "second_moment_clip", "limit": 2.0}, "off_policy_sequence"],
        "behavior_kl_coefficient": 0.01,
    },
    "kept": {
        "importance_weight": "truncated",
        "kl": {"coefficient": 0.1},
        "entropy_bonus": {"coefficient": 0.01},
    },
    "kept, reward": {"advantage": "reinforce_pp", "kl": {"coefficient": 0.1, "place": "reward"}},
    "turns, critic": {"advantage": {"name": "gae", "gae_lambda": 0.9, "gamma": 0.98}},
    "rloo": {"advantage": "rloo", "kl": {"coefficient": 0.1, "place": "reward"}, "reduction": "prompt_mean"},
    "routed": {"routing_replay": "rollout"},
    "routed, proximal": {"routing_replay": "proximal", "kl": {"coefficient": 0.1}},
    "critic": {
        "advantage": {"name": "gae", "gae_lambda": 0.9, "gamma": 0.98},
        "kl": {"coefficient": 0.1, "place": "reward"},
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
MUON = {"optimizer": {"name": "muon", "learning_rate": 1e-3}}
LORA = {"rank": 2, "alpha": 4.0}
LIMITS = {"muon": 5e-5}
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
    "glm4_moe, resumed as pipeline": ("glm4_moe", {"pipeline": 2}),
    "qwen3_next, tensor, expert": ("qwen3_next", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "qwen3_next, resumed as pipeline": ("qwen3_next", {"pipeline": 2}),
    "deepseek, tensor, expert": ("deepseek", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "deepseek, resumed as pipeline": ("deepseek", {"pipeline": 2}),
    "gpt_oss, tensor, expert": ("gpt_oss", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "gpt_oss, expert, optimizer": ("gpt_oss", {"expert": 2, "distributed_optimizer": True}),
    "gpt_oss, resumed as pipeline": ("gpt_oss", {"pipeline": 2}),
    "shared, tensor, expert": ("shared", {"tensor": 2, "sequence_parallel": True, "expert": 2}),
    "shared, expert, optimizer": ("shared", {"expert": 2, "distributed_optimizer": True}),
    "shared, pipeline": ("shared", {"pipeline": 2, "virtual_stages": 2}),
    "shared, resumed as pipeline": ("shared", {"pipeline": 2}),
    "olmo2, tensor": ("olmo2", {"tensor": 2}),
    "olmo2, tensor, sequence": ("olmo2", {"tensor": 2, "sequence_parallel": True}),
    "olmo2, resumed as pipeline": ("olmo2", {"pipeline": 2}),
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
    "resumed as interleaved": ("qwen3", {"pipeline": 2, "virtual_stages": 2, "distributed_optimizer": True}),
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
    "olmo2, resumed as pipeline": "olmo2, tensor, sequence",
    "shared, resumed as pipeline": "shared, expert, optimizer",
    "experts, resumed as pipeline": "experts, tensor, optimizer",
    "glm4_moe, resumed as pipeline": "glm4_moe, tensor, expert",
    "qwen3_next, resumed as pipeline": "qwen3_next, tensor, expert",
    "deepseek, resumed as pipeline": "deepseek, tensor, expert",
    "gpt_oss, resumed as pipeline": "gpt_oss, expert, optimizer",
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
TYPICAL = {
    *("everything, pipeline", "everything, context", "everything, overlapped", "data, optimizer"),
    *("resumed as tensor, sequence", "experts, tensor", "gpt_oss, tensor, expert", "lora, tensor, sequence"),
    *("judged, data", "kept, tensor", "dpo, context", "taught, tensor", "turns, data"),
}
"""In `make test`: each way to divide, and each kind of training, once. The others are slow."""
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
    written = {name: write_tiny(root / name, family, **sizes) for name, (family, sizes) in MODELS.items()}
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
            critic=critic_of(name),
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
    return run_cases(worker_cases(cases, 2, models), 2, template, tmp_path_factory.mktemp("together"))


def asked(cases: dict[str, tuple[str, dict]], request: pytest.FixtureRequest) -> dict[str, tuple[str, dict]]:
    """The cases of the tests that were selected, and those that they resume from."""
    ours = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["name"] for item in ours if hasattr(item, "callspec")}
    names |= {RESUMED[name] for name in names & RESUMED.keys()}
    return {name: case for name, case in cases.items() if name in names}


def parameters_of(cases: dict[str, tuple[str, dict]]) -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in TYPICAL)) for name in cases]


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
        **tiny(MODELS[model][0]).trainer,
    }


def critic_of(model: str) -> dict[str, float] | None:
    return CRITIC if model.endswith("critic") else None


def lora_of(model: str) -> dict[str, float] | None:
    return LORA if model.startswith("lora") else None


def worker_cases(
    cases: dict[str, tuple[str, dict]], num_ranks: int, models: dict[str, Path]
) -> list[dict[str, Any]]:
    """As fakes/layout_worker.py reads them."""
    return [
        {
            "name": name,
            "model": str(models[model]),
            "trainer": {"num_processes": num_ranks, "parallel": sizes} | trainer_keys(model),
            "algorithm": ALGORITHMS.get(model, {}),
            "critic": critic_of(model),
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


@pytest.mark.parametrize("together", [TWO_RANKS], indirect=True, ids=["policy"])
@pytest.mark.parametrize("name", parameters_of(TWO_RANKS))
def test_two_ranks_take_the_steps_of_one(name: str, alone: Path, together: Path):
    model, _ = TWO_RANKS[name]
    is_rl = stage_of(model) == "rl"
    assert_same_steps(together / name, alone / model, limit=LIMITS.get(model, 1e-5), has_tokens=is_rl)


@pytest.mark.parametrize("together", [CRITIC_ON_TWO_RANKS], indirect=True, ids=["critic"])
@pytest.mark.parametrize("name", parameters_of(CRITIC_ON_TWO_RANKS))
@pytest.mark.slow
def test_two_ranks_train_the_critic_of_one(name: str, alone: Path, together: Path):
    wanted = alone / CRITIC_ON_TWO_RANKS[name][0]
    assert (wanted / "critic" / "model.safetensors").exists()
    assert_same_steps(together / name, wanted)


@pytest.mark.slow
def test_four_ranks_take_the_steps_of_one(
    alone: Path, models: dict[str, Path], template: Template, tmp_path_factory: pytest.TempPathFactory
):
    root = run_cases(worker_cases(FOUR_RANKS, 4, models), 4, template, tmp_path_factory.mktemp("four"))
    for name, (model, _) in FOUR_RANKS.items():
        assert_same_steps(root / name, alone / model, has_tokens=stage_of(model) == "rl")


def test_the_steps_move_every_weight(alone: Path, models: dict[str, Path]):
    for trained in alone.glob("*/model.safetensors"):
        before = safetensors.torch.load_file(models[trained.parent.name] / "model.safetensors")
        after = safetensors.torch.load_file(trained)
        still = [key for key, tensor in after.items() if torch.allclose(tensor, before[key], atol=1e-4)]
        if lora_of(trained.parent.name) is None:
            assert not still
        else:
            assert all("_proj" in key for key in after.keys() - set(still))
            # Biases have no adapters.
            assert not [key for key in still if "_proj.weight" in key]
