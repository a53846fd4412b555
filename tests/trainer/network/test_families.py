"""Every family against transformers, one tiny random model each: log-probs, gradients, packing, the export.

The variants of families (rotary positions, tied layers, other routers) are compared in the same way.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.policies import build_model, load_policy
from families.known import TINY, write_tiny
from families.properties import of_each_family

from asyncrl.model.folder import check_model_folder
from asyncrl.records import ScoredSequence
from asyncrl.trainer.network.convert import export_weights, load_weights
from asyncrl.trainer.network.export import export_model, open_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy, half_device
from asyncrl.trainer.packing.batch import MicroBatch, make_micro_batch

TEMPERATURE = 0.7
GROUP_SIZE = 3
SEQUENCES = random_batch(1, group_size=GROUP_SIZE, longest=40, temperature=TEMPERATURE).sequences
VARIANTS = [(architecture, variant) for architecture, entry in TINY.items() for variant in entry.variants]
of_each_variant = pytest.mark.parametrize(("architecture", "variant"), VARIANTS)


def reference_of(folder: Path) -> torch.nn.Module:
    # The other kernels of transformers leave soft caps out.
    return reference_model(folder, attn_implementation="eager")


def reference_gradients(reference: torch.nn.Module, folder: Path) -> dict[str, torch.Tensor]:
    """By the names of folders: transformers keeps some tensors in one while it computes."""
    for parameter in reference.parameters():
        parameter.data = parameter.grad
    reference.save_pretrained(folder)
    return safetensors.torch.load_file(folder / "model.safetensors")


def gradients_of(policy: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in export_weights(policy, lambda each: each.grad)}


def slopes_of(count: int) -> torch.Tensor:
    return torch.linspace(-1.0, 1.0, count)


def assert_as_transformers(architecture: str, variant: str | None, folder: Path) -> None:
    write_tiny(folder, architecture, variant=variant)
    policy, reference = load_policy(folder), reference_of(folder)
    logprobs, _ = policy(make_micro_batch(SEQUENCES, 1), TEMPERATURE)
    expected = torch.cat([reference_logprobs(reference, each, TEMPERATURE) for each in SEQUENCES])
    assert expected.std() > 0.5, "logits of this model are too flat to test anything"
    assert (logprobs - expected).abs().max() < TINY[architecture].limit
    for values in (logprobs, expected):
        (values * slopes_of(len(values))).sum().backward()
    wanted = reference_gradients(reference, folder / "gradients")
    found = gradients_of(policy)
    # The biases of a router's choice have no gradient.
    assert found.keys() == {name for name in wanted if "correction_bias" not in name}
    for name, gradient in found.items():
        # An expert that got no token has none.
        assert (gradient - wanted[name]).abs().max() <= 1e-4 * wanted[name].abs().max(), name


@of_each_family("transformers")
def test_a_family_computes_what_transformers_does(architecture: str, tmp_path: Path) -> None:
    assert_as_transformers(architecture, None, tmp_path)


@pytest.mark.exhaustive
@of_each_variant
def test_a_variant_of_a_family_does_too(architecture: str, variant: str, tmp_path: Path) -> None:
    assert_as_transformers(architecture, variant, tmp_path)


def pass_over(
    policy: PolicyModel, micro_batches: Sequence[MicroBatch]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs of all in order, and the gradient of their sum with a slope for each."""
    policy.zero_grad()
    logprobs = [policy(micro, TEMPERATURE)[0] for micro in micro_batches]
    found = torch.cat(logprobs)
    (found * slopes_of(len(found))).sum().backward()
    return found.detach(), gradients_of(policy)


@of_each_family("packed")
def test_packed_sequences_are_those_of_each_alone(architecture: str, tmp_path: Path) -> None:
    policy = load_policy(write_tiny(tmp_path, architecture))
    # One of each group: these begin with different tokens.
    for sequences, is_tree in ((SEQUENCES, True), (SEQUENCES[::GROUP_SIZE], False)):
        whole = make_micro_batch(sequences, 1)
        assert (len(whole.tokens) < num_inputs(sequences)) is is_tree
        packed, found = pass_over(policy, [whole])
        alone, wanted = pass_over(policy, [make_micro_batch([each], 1) for each in sequences])
        assert (packed - alone).abs().max() < 3e-5
        for name, gradient in wanted.items():
            assert (found[name] - gradient).abs().max() <= 1e-4 * max(1.0, gradient.abs().max()), name


def num_inputs(sequences: Sequence[ScoredSequence]) -> int:
    """Their tokens but the last of each, which is only predicted."""
    return sum(len(each.prompt_tokens) + len(each.response_tokens) - 1 for each in sequences)


@of_each_family("export")
def test_transformers_loads_an_export_to_the_same_logits(architecture: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", architecture)
    policy = load_policy(folder)
    wanted = safetensors.torch.load_file(folder / "model.safetensors")
    weights = dict(export_weights(policy))
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    export_model(policy, base=folder, target=tmp_path / "export")
    tokens = torch.tensor([SEQUENCES[0].prompt_tokens + SEQUENCES[0].response_tokens])
    found, expected = (reference_of(each)(tokens).logits for each in (tmp_path / "export", folder))
    assert torch.equal(found, expected)


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
