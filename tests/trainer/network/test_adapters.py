"""Adapters against transformers with the sums as its weights, differentiated by torch: the oracle."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from families.known import tiny, write_tiny

from asyncrl.model.folder import check_model_folder
from asyncrl.recipe.sections.model import Lora
from asyncrl.trainer.network.adapted_layers import adapted_layers
from asyncrl.trainer.network.adapters import export_adapter, without_adapters
from asyncrl.trainer.network.convert import export_weights, load_adapters
from asyncrl.trainer.network.export import load_base, open_weights
from asyncrl.trainer.network.model import Policy, build_policy
from asyncrl.trainer.packing.batch import make_micro_batch

LORA = Lora(rank=3, alpha=6.0)
OF_NETWORKS = {
    "Qwen3MoeForCausalLM": 2 * 4,
    "Qwen2MoeForCausalLM": 2 * (4 + 1),
    "Glm4MoeForCausalLM": 1 + (6 + 1),
    "Qwen3NextForCausalLM": 2 * (4 + 1),
}
"""Feed-forward networks in all layers: experts, shared experts, and those of layers that have no experts."""
FAMILIES = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {},
    "GptOssForCausalLM": {},
}
LOSS_TOKENS = 40


def lora_of(architecture: str) -> Lora:
    """For all matrices of the family that take adapters."""
    return Lora(**LORA.model_dump() | tiny(architecture).lora)


def adapted_policy(
    folder: Path, lora: Lora = LORA, dtype: torch.dtype = torch.float32, recompute: str = "none"
) -> Policy:
    """With adapters that matter: B is no longer zero."""
    policy = build_policy(check_model_folder(folder), dtype, lora=lora, recompute=recompute)
    load_base(policy, open_weights(folder), seed=1)
    load_adapters(policy, trained_value)
    return policy


def trained_value(name: str, shape: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(name) + sum(map(ord, name)))
    return 0.2 * torch.randn(shape, generator=generator)


def adapters_of(policy: Policy) -> dict[str, torch.Tensor]:
    return dict(export_weights(policy, torch.nn.Parameter.detach, of_adapters=True))


def summed_weights(base: dict[str, torch.Tensor], adapters: dict[str, torch.Tensor], scale: float) -> dict:
    """W + scale x B A of every matrix that has an adapter, by peft's names alone."""
    found = dict(base)
    for name, b in adapters.items():
        if name.endswith("lora_B.weight"):
            weight = name.removeprefix("base_model.model.").replace(".lora_B", "")
            found[weight] = base[weight] + scale * b @ adapters[name.replace("lora_B", "lora_A")]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_and_gradients_are_those_of_transformers_with_the_sums(family: str, tmp_path: Path):
    folder, lora = write_tiny(tmp_path, family, **FAMILIES[family]), lora_of(family)
    policy = adapted_policy(folder, lora)
    batch = random_batch(1, longest=LOSS_TOKENS, temperature=0.7)
    micro = make_micro_batch(batch.sequences, 1)
    logprobs, _ = policy[0](micro, 0.7)
    slopes = torch.linspace(-1, 1, len(logprobs))
    (logprobs * slopes).sum().backward()
    reference = reference_model(folder)
    base = {name: parameter.detach() for name, parameter in reference.named_parameters()}
    adapters = {name: tensor.clone().requires_grad_() for name, tensor in adapters_of(policy).items()}
    assert len(adapters) == 2 * 2 * len(lora.targets)
    sums = summed_weights(base, adapters, lora.scale())

    class Summed(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> object:
            return torch.func.functional_call(reference, sums, (tokens,))

    expected = torch.cat([reference_logprobs(Summed(), s, 0.7) for s in batch.sequences])
    (expected * slopes).sum().backward()
    assert (logprobs - expected).abs().max() < 1e-5
    with torch.no_grad():
        plain = torch.cat([reference_logprobs(reference, s, 0.7) for s in batch.sequences])
    assert (plain - expected).abs().max() > 0.1, "adapters too small to test anything"
    gradients = dict(export_weights(policy, lambda parameter: parameter.grad, of_adapters=True))
    assert gradients.keys() == adapters.keys()
    for name, gradient in gradients.items():
        wanted = adapters[name].grad
        assert (gradient - wanted).abs().max() < 1e-5 * max(1.0, wanted.abs().max()), name
    # The reference of a KL is the base, to the bit of what the base gives on its own.
    with torch.no_grad(), without_adapters(policy):
        off, _ = policy[0](micro, 0.7)
        bare = build_policy(policy[0].shape, torch.float32)
        load_base(bare, open_weights(folder), seed=0)
        assert torch.equal(off, bare[0](micro, 0.7)[0])
    assert (off - plain).abs().max() < 1e-5


def test_recomputed_activations_give_the_same_gradient(tmp_path: Path):
    write_model(tmp_path)
    micro = make_micro_batch(random_batch(1).sequences, 1)
    stored, again = (adapted_policy(tmp_path, recompute=recompute) for recompute in ("none", "full"))
    for policy in (stored, again):
        policy[0](micro, 1.0)[0].sum().backward()
    gradients = [
        dict(export_weights(policy, lambda parameter: parameter.grad, of_adapters=True))
        for policy in (stored, again)
    ]
    assert all(torch.equal(gradients[1][name], tensor) for name, tensor in gradients[0].items())


def test_a_bfloat16_forward_is_that_of_the_published_weights_to_the_bit(tmp_path: Path):
    folder = write_model(tmp_path / "base")
    policy = adapted_policy(folder, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in policy.parameters() if parameter.requires_grad} == {
        torch.float32
    }
    published = dict(export_weights(policy))
    base = {name: tensor.bfloat16().float() for name, tensor in read(folder).items()}
    for name, tensor in summed_weights(base, adapters_of(policy), LORA.scale()).items():
        assert published[name].dtype is torch.bfloat16
        # Rounded once; another order of the rank's sums may fall on the other side of a half.
        close = (published[name].float() - tensor).abs() <= tensor.abs() * 2**-8
        assert close.all(), name
    plain = build_policy(policy[0].shape, torch.bfloat16)
    load_base(plain, published.__getitem__, seed=0)
    micro = make_micro_batch(random_batch(1).sequences, 1)
    with torch.no_grad():
        assert torch.equal(policy[0](micro, 1.0)[0], plain[0](micro, 1.0)[0])


def read(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", OF_NETWORKS)
def test_experts_have_adapters_of_their_own(family: str, tmp_path: Path):
    folder = write_tiny(tmp_path, family)
    policy = adapted_policy(folder, Lora(rank=2, alpha=4.0, targets=["gate_proj", "up_proj", "down_proj"]))
    adapters = adapters_of(policy)
    assert len(adapters) == OF_NETWORKS[family] * 3 * 2
    sums = summed_weights(read(folder), adapters, 2.0)
    published = dict(export_weights(policy))
    assert published.keys() == sums.keys()
    assert all((published[name] - sums[name]).abs().max() < 1e-6 for name in sums)
    micro = make_micro_batch(random_batch(1).sequences, 1)
    logprobs, _ = policy[0](micro, 1.0)
    logprobs.sum().backward()
    plain = build_policy(policy[0].shape, torch.float32)
    load_base(plain, published.__getitem__, seed=0)
    plain_logprobs, _ = plain[0](micro, 1.0)
    assert torch.equal(logprobs, plain_logprobs)
    plain_logprobs.sum().backward()
    of_weights = dict(export_weights(plain, lambda parameter: parameter.grad))
    for name, gradient in export_weights(policy, lambda parameter: parameter.grad, of_adapters=True):
        if name.endswith("lora_B.weight"):
            weight = name.removeprefix("base_model.model.").replace(".lora_B", "")
            a = adapters[name.replace("lora_B", "lora_A")]
            assert torch.allclose(gradient, 2.0 * of_weights[weight] @ a.t(), atol=1e-4), name


def test_adapters_start_as_nothing_from_the_seed_and_their_name(tmp_path: Path):
    folder = write_model(tmp_path)
    policy, other = (build_policy(check_model_folder(folder), torch.float32, lora=LORA) for _ in range(2))
    digest = load_base(policy, open_weights(folder), seed=1)
    assert load_base(other, open_weights(folder), seed=2) == digest
    adapters, others = adapters_of(policy), adapters_of(other)
    assert all(not tensor.any() for name, tensor in adapters.items() if "lora_B" in name)
    matrices = [name for name in adapters if "lora_A" in name]
    for name in matrices:
        bound = adapters[name].shape[1] ** -0.5
        assert 0.8 * bound < adapters[name].abs().max() <= bound
        assert not torch.equal(adapters[name], others[name])
    assert len({float(adapters[name].sum()) for name in matrices}) == len(matrices)
    assert all(torch.equal(tensor, read(folder)[name]) for name, tensor in export_weights(policy))


def test_a_matrix_that_is_no_target_has_no_adapter_and_no_gradient(tmp_path: Path):
    folder = write_model(tmp_path, "Qwen2")
    policy = adapted_policy(folder, Lora(rank=2, alpha=2.0, targets=["v_proj", "down_proj"]))
    assert {name.split(".")[-3] for name in adapters_of(policy)} == {"v_proj", "down_proj"}
    policy[0](make_micro_batch(random_batch(1).sequences, 1), 1.0)[0].sum().backward()
    assert all((parameter.grad is None) is not parameter.requires_grad for parameter in policy.parameters())
    changed = {name for name, tensor in export_weights(policy) if not torch.equal(tensor, read(folder)[name])}
    assert {name.split(".")[-2] for name in changed} == {"v_proj", "down_proj"}
    assert len(list(adapted_layers(policy))) == 4


# peft 0.21 looks for its patterns of stacked experts among modules, where there are none, and applies them.
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match:RuntimeWarning")
@pytest.mark.parametrize("family", [*FAMILIES, *OF_NETWORKS])
def test_an_exported_adapter_is_one_of_peft(family: str, tmp_path: Path):
    folder = write_tiny(tmp_path / "base", family, **FAMILIES.get(family, {}))
    lora = lora_of(family)
    policy = adapted_policy(folder, lora)
    export_adapter(policy, base=str(folder), target=tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 6.0)
    parameters = (name.removesuffix(".weight") for name in config.get("target_parameters", ()))
    named = {*config["target_modules"], *(name.rpartition(".")[2] for name in parameters)}
    assert named - {"gate_up_proj"} == {*lora.targets}
    matrices = safetensors.torch.load_file(tmp_path / "adapter/adapter_model.safetensors")
    sums = summed_weights(read(folder), matrices, config["lora_alpha"] / config["r"])
    assert all((tensor - sums[name]).abs().max() < 1e-6 for name, tensor in export_weights(policy))
    peft = pytest.importorskip("peft")
    loaded = peft.PeftModel.from_pretrained(reference_model(folder), tmp_path / "adapter")
    batch = random_batch(1, longest=LOSS_TOKENS)
    with torch.no_grad():
        expected = torch.cat([reference_logprobs(loaded, s, 1.0) for s in batch.sequences])
        logprobs, _ = policy[0](make_micro_batch(batch.sequences, 1), 1.0)
    assert (logprobs - expected).abs().max() < 1e-5
