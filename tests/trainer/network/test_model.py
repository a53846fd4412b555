"""Our Megatron model against transformers: the same weights must give the same numbers."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.policies import load_policy

from asyncrl.model.folder import check_model_folder
from asyncrl.trainer.network.convert import export_weights, load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import PolicyModel, build_model, build_policy, half_device
from asyncrl.trainer.packing.batch import make_micro_batch

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
PHI3 = {"pad_token_id": None, "eos_token_id": 1}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 300.0,
    "short_factor": [1.0, 1.5, 3.0],
    "long_factor": [2.0, 4.0, 8.0],
}
# Three quarters of heads of 8 are rotated.
PHI4_MINI = {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "rope_parameters": LONGROPE}
PHI4_MINI |= {"max_position_embeddings": 512, "original_max_position_embeddings": 64}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 0.5,
}
GLM4_MOE = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
GLM4_MOE |= {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "attention_bias": True}
DEEPSEEK = {"num_key_value_heads": 4, "num_hidden_layers": 3, "first_k_dense_replace": 1}
DEEPSEEK |= {"q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8}
DEEPSEEK |= {"v_head_dim": 14, "n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24}
DEEPSEEK |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.8, "moe_layer_freq": 1}
DEEPSEEK |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
LITE = DEEPSEEK | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 32}
YARN |= {"mscale": 1.0, "mscale_all_dim": 0.7}
SHARED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED |= {"shared_expert_intermediate_size": 40}
NEXT = SHARED | {"head_dim": 16, "num_hidden_layers": 3}
NEXT |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
NEXT |= {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "full_attention_interval": 2}
NEXT |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
MODELS = {
    "qwen3": ("Qwen3", {}),
    "qwen3_next": ("Qwen3Next", NEXT),
    "qwen3, tied": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied, one head per group": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 16384}),
    "mistral": ("Mistral", {"sliding_window": 64}),
    "phi3": ("Phi3", PHI3),
    "phi3, tied": ("Phi3", PHI3 | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "phi4-mini": ("Phi3", PHI3 | PHI4_MINI),
    "granite": ("Granite", GRANITE),
    "granite, tied": ("Granite", GRANITE | {"tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", SHARED),
    "glm4_moe": ("Glm4Moe", GLM4_MOE),
    "glm4_moe, norms of q and k": (
        "Glm4Moe",
        GLM4_MOE | {"use_qk_norm": True, "attention_bias": False, "n_shared_experts": 2},
    ),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "deepseek_v3, yarn": ("DeepseekV3", DEEPSEEK | {"rope_parameters": YARN}),
    "deepseek_v3, whole queries": (
        "DeepseekV3",
        LITE | {"rope_parameters": YARN | {"mscale": 0.7}, "v_head_dim": 22, "rms_norm_eps": 1e-3},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        LITE
        | {"rope_parameters": YARN, "topk_method": "greedy", "scoring_func": "softmax"}
        | {"norm_topk_prob": False, "routed_scaling_factor": 1.3},
    ),
    "experts": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": True}),
    "experts, not normalised": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": False}),
    "experts, one per token": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": False, "num_experts_per_tok": 1}),
}

LOOSE = {"qwen3_next": 5e-5}
"""Largest difference of a log-prob, where it is not 1e-5. Linear attention norms numbers near 0: here
float32 of transformers itself is 3e-5 from its float64."""


def load(folder: Path) -> PolicyModel:
    return load_policy(folder)


def gradients_of(reference: torch.nn.Module, folder: Path) -> dict[str, torch.Tensor]:
    """By the names of folders: transformers keeps some tensors in one while it computes."""
    for parameter in reference.parameters():
        parameter.data = parameter.grad
    reference.save_pretrained(folder)
    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_packed_log_probs_and_gradients_are_those_of_transformers(name: str, tmp_path: Path):
    family, overrides = MODELS[name]
    folder = write_model(tmp_path, family, **overrides)
    batch = random_batch(1, longest=40, temperature=0.7)
    micro = make_micro_batch(batch.sequences, 1)
    model = load(folder)
    logprobs, _ = model(micro, 0.7)
    reference = reference_model(folder)
    expected = torch.cat([reference_logprobs(reference, s, 0.7) for s in batch.sequences])
    assert expected.std() > 0.5, "logits of this model are too flat to test anything"
    assert (logprobs - expected).abs().max() < LOOSE.get(name, 1e-5)
    weights = torch.linspace(-1.0, 1.0, len(expected))
    for values in (logprobs, expected):
        (values * weights).sum().backward()
    wanted = gradients_of(reference, tmp_path / "gradients")
    found = dict(export_weights(model, lambda parameter: parameter.grad))
    assert found.keys() == {name for name in wanted if "correction_bias" not in name}
    for name, gradient in found.items():
        # An expert that got no token has none.
        assert (gradient - wanted[name]).abs().max() <= 1e-4 * wanted[name].abs().max(), name


@pytest.mark.parametrize("name", MODELS)
def test_weights_return_bit_for_bit_under_their_own_names(name: str, tmp_path: Path):
    family, overrides = MODELS[name]
    wanted = safetensors.torch.load_file(write_model(tmp_path, family, **overrides) / "model.safetensors")
    weights = dict(export_weights(load(tmp_path)))
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def test_bfloat16_weights_return_bit_for_bit(tmp_path: Path):
    folder = write_model(tmp_path)
    model = build_model(check_model_folder(folder), torch.bfloat16)
    fetch = open_weights(folder)
    load_weights(model, fetch)
    for name, tensor in export_weights(model):
        assert torch.equal(tensor, fetch(name).bfloat16())


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_give_the_same_gradient(recompute: str, name: str, tmp_path: Path):
    family, overrides = MODELS[name]
    shape = check_model_folder(write_model(tmp_path, family, **overrides))
    fetch = open_weights(tmp_path)
    micro = make_micro_batch(random_batch(1).sequences, 1)
    gradients = []
    for policy in (
        build_policy(shape, torch.float32),
        build_policy(shape, torch.float32, recompute=recompute),
    ):
        load_weights(policy, fetch)
        policy[0](micro, 1.0)[0].sum().backward()
        gradients.append(dict(export_weights(policy, lambda parameter: parameter.grad)))
    stored, again = gradients
    assert all(torch.equal(again[name], tensor) for name, tensor in stored.items())


def test_only_bfloat16_on_a_gpu_has_a_peak_to_compare_with(monkeypatch: pytest.MonkeyPatch):
    assert half_device(torch.bfloat16) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert half_device(torch.bfloat16) == "Some GPU"
    assert half_device(torch.float32) is None
