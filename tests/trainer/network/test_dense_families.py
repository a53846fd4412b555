"""Families and rotary positions that need more than Megatron's own layers, against transformers.

One tiny random model each: log-probs and gradients, its sequences packed as a tree and one by one, and the
export, which transformers loads to the same logits.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.policies import load_policy

from asyncrl.records import ScoredSequence
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.export import export_model
from asyncrl.trainer.network.model import PolicyModel
from asyncrl.trainer.packing.batch import make_micro_batch

TEMPERATURE = 0.7
ROPE = {
    "linear": {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 300.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "rope_theta": 300.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "llama3 with other numbers": {
        "rope_type": "llama3",
        "rope_theta": 300.0,
        "factor": 8.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 6.0,
        "original_max_position_embeddings": 32,
    },
}
NO_PAD = {"pad_token_id": None, "eos_token_id": 1}
"""A padding token's row would have no gradient in transformers."""
GLM4 = {"head_dim": 16, "rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 0.5}}
SLIDING = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA2 = {
    **SLIDING,
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 3.0,
}
GEMMA3 = {**SLIDING, "head_dim": 16, "query_pre_attn_scalar": 9}
GPT_OSS = {
    **SLIDING,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    # Small, so that it cuts.
    "swiglu_limit": 0.5,
    "rope_parameters": ROPE["yarn"] | {"truncate": False},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("Qwen3", {"rope_parameters": rope}) for name, rope in ROPE.items()},
    "olmo2": ("Olmo2", NO_PAD),
    "olmo2, tied": ("Olmo2", NO_PAD | {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    # Layers 0 and 2 are rotated.
    "smollm3": (
        "SmolLM3",
        NO_PAD
        | {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "rope_parameters": {"rope_theta": 300.0}},
    ),
    "smollm3, yarn": ("SmolLM3", NO_PAD | {"no_rope_layers": [0, 1], "rope_parameters": ROPE["yarn"]}),
    "glm4": ("Glm4", NO_PAD | GLM4),
    "gemma2": ("Gemma2", NO_PAD | GEMMA2),
    "gemma2, window never reached": ("Gemma2", NO_PAD | GEMMA2 | {"sliding_window": 64}),
    "gemma3": ("Gemma3Text", NO_PAD | GEMMA3),
    "gemma3, full layers scaled": (
        "Gemma3Text",
        NO_PAD
        | GEMMA3
        | {"rope_parameters": {"full_attention": ROPE["linear"], "sliding_attention": {"rope_theta": 50.0}}},
    ),
    "gpt-oss": ("GptOss", NO_PAD | GPT_OSS),
    "gpt-oss, window never reached": ("GptOss", NO_PAD | GPT_OSS | {"sliding_window": 64}),
    "olmo3": ("Olmo3", NO_PAD | SLIDING),
    "olmo3, yarn": (
        "Olmo3",
        NO_PAD
        | SLIDING
        | {"rope_parameters": {"full_attention": ROPE["yarn"], "sliding_attention": {"rope_theta": 300.0}}},
    ),
    "glm4, without biases": ("Glm4", NO_PAD | GLM4 | {"attention_bias": False, "num_key_value_heads": 1}),
}
IN_MAKE_TEST = ("yarn", "olmo2", "smollm3", "glm4", "gemma2", "gemma3", "olmo3", "gpt-oss")
"""One of each family; the others are variants of one."""


def add_keys_of_servers(file: Path) -> None:
    """OLMo 3's rotary positions once more, in the keys of transformers 4."""
    config = json.loads(file.read_text())
    scaling = dict(config["rope_parameters"]["full_attention"])
    config["rope_theta"] = scaling.pop("rope_theta")
    file.write_text(json.dumps(config | {"rope_scaling": scaling}))


def sequence_gradients(
    model: torch.nn.Module, sequences: list[ScoredSequence], logprobs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Gradient of a sum of log-probs with a weight of their own each."""
    weights = torch.randn(len(logprobs), generator=torch.Generator().manual_seed(5))
    (logprobs * weights).sum().backward()
    if isinstance(model, PolicyModel):
        return dict(export_weights(model, lambda parameter: parameter.grad))
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.exhaustive) for name in MODELS],
)
def test_a_family_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    family, settings = MODELS[name]
    folder = write_model(tmp_path / "model", family, **settings)
    if family == "Olmo3":
        add_keys_of_servers(folder / "config.json")
    sequences = random_batch(1, longest=40, temperature=TEMPERATURE).sequences
    policy = load_policy(folder)
    # The other kernels of transformers leave soft caps out.
    reference = reference_model(folder, attn_implementation="eager")
    logprobs, _ = policy(make_micro_batch(sequences, 1), TEMPERATURE)
    expected = torch.cat([reference_logprobs(reference, each, TEMPERATURE) for each in sequences])
    assert expected.std() > 0.5, "logits of this model are too flat to test anything"
    assert (logprobs - expected).abs().max() < 2e-5
    with torch.no_grad():
        alone = [policy(make_micro_batch([each], 1), TEMPERATURE)[0] for each in sequences]
    assert (logprobs - torch.cat(alone)).abs().max() < 3e-5
    export_model(policy, base=folder, target=tmp_path / "export")
    again = reference_model(tmp_path / "export", attn_implementation="eager")
    tokens = torch.tensor([sequences[0].prompt_tokens + sequences[0].response_tokens])
    assert torch.equal(again(tokens).logits, reference(tokens).logits)
    found = sequence_gradients(policy, sequences, logprobs)
    wanted = sequence_gradients(reference, sequences, expected)
    assert found.keys() == wanted.keys()
    for each, gradient in wanted.items():
        assert (found[each] - gradient).abs().max() < 1e-4 * max(1.0, gradient.abs().max().item()), each
