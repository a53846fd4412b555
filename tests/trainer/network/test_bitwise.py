"""The policy by the arithmetic that servers share: the same function, and no token depends on others."""

from pathlib import Path

import pytest
import torch
from fakes.models import random_batch, write_model
from families.models import LLAMA

from asyncrl.model.folder import check_model_folder
from asyncrl.records import ScoredSequence
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy
from asyncrl.trainer.packing.attention_kernels import BITWISE
from asyncrl.trainer.packing.batch import make_micro_batch

MODELS = {
    "Qwen3": {"tie_word_embeddings": True},
    "Qwen2": {},
    "Llama": LLAMA.variants["llama3, published"],
}


def load(folder: Path, dtype: torch.dtype = torch.float32, *, is_bitwise: bool) -> PolicyModel:
    policy = build_policy(check_model_folder(folder), dtype, is_bitwise=is_bitwise)
    load_weights(policy, open_weights(folder))
    (model,) = policy
    return model


@pytest.mark.parametrize("family", MODELS)
def test_log_probs_and_gradients_are_the_ordinary_ones(family: str, tmp_path: Path):
    folder = write_model(tmp_path, family, **MODELS[family], num_hidden_layers=1)
    # More than one block of rows and of keys.
    batch = random_batch(1, num_groups=3, group_size=2, longest=90)
    found, gradients = [], []
    for is_bitwise in (False, True):
        model = load(folder, is_bitwise=is_bitwise)
        micro = make_micro_batch(batch.sequences, 1, kernel=BITWISE if is_bitwise else "sdpa")
        logprobs, entropies = model(micro, 0.7)
        (logprobs * micro.advantages + 0.1 * entropies).sum().backward()
        found.append(torch.stack([logprobs, entropies]).detach())
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    assert (found[0] - found[1]).abs().max() < 1e-5
    for name, gradient in gradients[0].items():
        assert (gradients[1][name] - gradient).norm() < 1e-4 * gradient.norm(), name


def single_logprobs(model: PolicyModel, sequences: list[ScoredSequence], kernel: str) -> torch.Tensor:
    found = [model(make_micro_batch([each], 1, kernel=kernel), 0.7)[0] for each in sequences]
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_a_sequence_has_the_same_log_probs_alone_and_in_any_pack(dtype: torch.dtype, tmp_path: Path):
    folder = write_model(tmp_path)
    sequences = random_batch(2, num_groups=4, group_size=3, longest=90).sequences
    differences = {}
    for kernel in (BITWISE, "sdpa"):
        model = load(folder, dtype, is_bitwise=kernel == BITWISE)
        together = model(make_micro_batch(sequences, 1, kernel=kernel), 0.7)[0]
        differences[kernel] = (together - single_logprobs(model, sequences, kernel)).abs().max().item()
    assert differences[BITWISE] == 0.0
    # Rounding to bfloat16 hides most differences of so small a model.
    assert differences["sdpa"] > 0 or dtype is torch.bfloat16
