"""Experts that folders keep in one tensor per layer; their values are compared in test_families.py."""

from pathlib import Path

import pytest
import torch
from fakes.models import write_model
from fakes.policies import load_policy

from asyncrl.trainer.network.convert import export_stages, exported_tensors, huggingface_names
from asyncrl.trainer.network.experts import fetch_part, stack_parts

GPT_OSS = {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 16, "eos_token_id": 1}
GPT_OSS |= {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}


def test_gate_and_up_by_turns_become_gate_over_up_and_return() -> None:
    # Two experts, one input, gates 0 and 2, ups 1 and 3.
    whole = {
        "experts.gate_up_proj": torch.arange(8.0).view(2, 1, 4),
        "experts.down_proj": torch.arange(12.0).view(2, 2, 3),
        "experts.gate_up_proj_bias": torch.arange(8.0).view(2, 4),
    }
    names = [f"{name}.{expert}" for name in whole for expert in range(2)]
    parts = {name: fetch_part(whole.__getitem__, name) for name in names}
    assert parts["experts.gate_up_proj.1"].tolist() == [[4.0], [6.0], [5.0], [7.0]]
    assert parts["experts.gate_up_proj_bias.0"].tolist() == [0.0, 2.0, 1.0, 3.0]
    assert parts["experts.down_proj.0"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    found = dict(stack_parts(parts.items(), 2))
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


def test_tensors_are_listed_as_they_are_sent(tmp_path: Path) -> None:
    model = load_policy(write_model(tmp_path, "GptOss", **GPT_OSS))
    listed = [(each.name, each.shape, each.dtype) for each in exported_tensors(model)]
    sent = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in export_stages(model)]
    assert listed == sent
    assert ("model.layers.1.mlp.experts.gate_up_proj", (3, 32, 96), torch.float32) in sent


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_experts_that_transformer_engine_numbers_are_slices_too(kind: str, tmp_path: Path) -> None:
    model = load_policy(write_model(tmp_path, "GptOss", **GPT_OSS))
    suffix = "" if kind == "weight" else "_bias"
    for name in (f"mlp.experts.local_experts.2.linear_fc1.{kind}", f"mlp.experts.linear_fc1.{kind}2"):
        wanted = (f"model.layers.1.mlp.experts.gate_up_proj{suffix}.2",)
        assert huggingface_names(model, f"decoder.layers.1.{name}") == wanted
