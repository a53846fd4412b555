"""Our Megatron model beyond its families (test_families.py): types of weights, recomputation, devices."""

from pathlib import Path

import pytest
import torch
from fakes.models import random_batch, write_model
from families.known import write_tiny

from asyncrl.model.folder import check_model_folder
from asyncrl.trainer.network.convert import export_weights, load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import build_model, build_policy, half_device
from asyncrl.trainer.packing.batch import make_micro_batch


def test_bfloat16_weights_return_bit_for_bit(tmp_path: Path):
    folder = write_model(tmp_path)
    model = build_model(check_model_folder(folder), torch.bfloat16)
    fetch = open_weights(folder)
    load_weights(model, fetch)
    for name, tensor in export_weights(model):
        assert torch.equal(tensor, fetch(name).bfloat16())


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "DeepseekV3ForCausalLM"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_give_the_same_gradient(recompute: str, architecture: str, tmp_path: Path):
    shape, fetch = check_model_folder(write_tiny(tmp_path, architecture)), open_weights(tmp_path)
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
    for name, tensor in stored.items():
        # A norm that is computed again gives its input one gradient, where autograd adds two to the residual.
        assert torch.equal(again[name], tensor) or recompute == "selective"
        assert torch.allclose(again[name], tensor, rtol=1e-5, atol=1e-6 * tensor.abs().max())


def test_only_bfloat16_on_a_gpu_has_a_peak_to_compare_with(monkeypatch: pytest.MonkeyPatch):
    assert half_device(torch.bfloat16) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert half_device(torch.bfloat16) == "Some GPU"
    assert half_device(torch.float32) is None
