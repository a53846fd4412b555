"""The norms, and the policy by the arithmetic that servers share: no token depends on others."""

from pathlib import Path

import pytest
import torch
from fakes.models import random_batch, write_model
from families.models import LLAMA
from torch import Tensor

from asyncrl.model.folder import check_model_folder
from asyncrl.records import ScoredSequence
from asyncrl.trainer.network import norms
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy
from asyncrl.trainer.network.norms import rms_norm
from asyncrl.trainer.packing.attention_kernels import BITWISE
from asyncrl.trainer.packing.batch import make_micro_batch

MODELS = {"Qwen3": {"tie_word_embeddings": True}, "Qwen2": {}, "Llama": LLAMA.variants["llama3, published"]}


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


def run(function, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of tokens and weight."""
    tokens, weight, gradient = (x.detach() for x in inputs)
    tokens, weight = tokens.requires_grad_(), weight.requires_grad_()
    output = function(tokens, weight)
    return [output.detach(), *torch.autograd.grad(output, (tokens, weight), gradient)]


@pytest.fixture
def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(17, 1, 24), (24,), (17, 1, 24)]
    return [(3 * torch.randn(*shape, generator=generator)).bfloat16() for shape in shapes]


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_values_and_gradients_are_rounded_once(inputs: list[Tensor], dtype: torch.dtype, unit: float):
    inputs = [x.to(dtype) for x in inputs]
    exact = run(lambda x, w: torch.nn.functional.rms_norm(x, (24,), w, 1e-5), [x.double() for x in inputs])
    for found, expected in zip(run(lambda x, w: rms_norm(x, w, 1e-5), inputs), exact, strict=True):
        # Half a unit in the last of 8 or 11 bits, and the rounding of float32 before it.
        assert found.dtype is dtype
        assert ((found.double() - expected).abs() <= unit * expected.abs() + 1e-5).all()


def test_slices_change_no_value(inputs: list[Tensor], monkeypatch: pytest.MonkeyPatch):
    whole = run(lambda x, w: rms_norm(x, w, 1e-5), inputs)
    monkeypatch.setattr(norms, "NUMBERS_AT_ONCE", 48)
    sliced = run(lambda x, w: rms_norm(x, w, 1e-5), inputs)
    assert all(map(torch.equal, sliced[:2], whole[:2]))
    # The weight's gradient is a sum over the slices.
    assert torch.allclose(sliced[2], whole[2], rtol=2**-8)


def test_a_vector_of_zeros_stays_zero_and_finite():
    tokens = torch.zeros(2, 8, dtype=torch.bfloat16, requires_grad=True)
    output = rms_norm(tokens, torch.ones(8, dtype=torch.bfloat16), 1e-5)
    output.sum().backward()
    assert output.eq(0).all() and tokens.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(17, 1, 24), (700, 1, 4, 32), (2000, 1, 128), (1, 1, 8), (0, 1, 16)])
def test_in_float32_values_and_gradients_are_those_of_torch_to_the_last_bit(shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(1)
    inputs = [3 * torch.randn(*each, generator=generator) for each in (shape, shape[-1:], shape)]

    def residual(norm):
        # Its gradient is a sum of three.
        return lambda x, w: x + norm(x, w)

    def plain(x, w):
        return torch.nn.functional.rms_norm(x, shape[-1:], w, 1e-6)

    for ours, torchs in ((own_norm, plain), (residual(own_norm), residual(plain))):
        assert all(map(torch.equal, run(ours, inputs), run(torchs, inputs)))


def own_norm(x: Tensor, w: Tensor) -> Tensor:
    return rms_norm(x, w, 1e-6)
