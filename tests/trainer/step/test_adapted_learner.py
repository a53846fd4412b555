"""Steps of a policy with adapters: what moves, what a checkpoint holds, what the KL is taken to."""

from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from families.known import tiny, write_tiny
from families.properties import of_each_family

from asyncrl.errors import InputError
from asyncrl.model.memory import rank_memory
from asyncrl.recipe.sections.model import Lora
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.checkpoints.checkpoint_files import names_in
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.export import export_model, read_weights
from asyncrl.trainer.packing.batch import make_micro_batch
from asyncrl.trainer.parts.critic import Critic
from asyncrl.trainer.parts.records import Spikes
from asyncrl.trainer.parts.reference import Reference
from asyncrl.trainer.publishing.host_weights import digests_of
from asyncrl.trainer.publishing.publish import Publisher
from asyncrl.trainer.step.learner import Learner

LORA = {"rank": 2, "alpha": 4.0}


def adapted_learner(
    folder: Path, dtype: str = "float32", lora: dict | None = None, **algorithm: object
) -> Learner:
    trainer = {"learning_rate": 1e-2, "weight_decay": 0.1}
    model = {"dtype": dtype, "lora": LORA | (lora or {})}
    return make_learner(folder, trainer=trainer, model=model, algorithm=algorithm)


def train(learner: Learner, first: int, last: int) -> list[dict[str, float]]:
    return [learner.step(random_batch(step)) for step in range(first, last)]


def num_bytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_run_continues_bit_for_bit_from_the_adapter_alone(folder: Path, tmp_path: Path, dtype: str):
    straight = adapted_learner(folder, dtype)
    base = copy_weights(straight.model)
    wanted = train(straight, 0, 2)
    checkpoints = Checkpoints(tmp_path, num_kept=2)
    path = checkpoints.save(straight, 2)
    wanted = train(straight, 2, 4)
    again = adapted_learner(folder, dtype)
    assert checkpoints.load_newest(again) == 2
    assert train(again, 2, 4) == wanted
    got, expected = copy_weights(again.model), copy_weights(straight.model)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    moved = {name for name in base if not torch.equal(base[name], expected[name])}
    assert moved == {name for name in base if "_proj.weight" in name}
    held = {name for name in names_in(path) if name != "common"}
    assert held and all(".adapters." in name for name in held)
    assert {name.split(".")[1] for name in held if name.startswith("optimizer")} == {"exp_avg", "exp_avg_sq"}


def test_a_checkpoint_of_another_base_is_refused(folder: Path, tmp_path: Path):
    learner, checkpoints = adapted_learner(folder), Checkpoints(tmp_path / "checkpoints", num_kept=1)
    checkpoints.save(learner, 1)
    other = adapted_learner(write_model(tmp_path / "other", seed=7))
    with pytest.raises(
        InputError, match="holds an adapter of a base model with digest .* Set model.path back"
    ):
        checkpoints.load_newest(other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kl_is_taken_to_the_base_model(folder: Path, dtype: str):
    learner = adapted_learner(folder, dtype, kl={"coefficient": 0.5})
    # As long as B is zero the policy is the reference.
    assert (
        learner.step(random_batch(0))["loss"] == adapted_learner(folder, dtype).step(random_batch(0))["loss"]
    )
    full = make_learner(folder, model={"dtype": dtype}, algorithm={"kl": {"coefficient": 0.5}})
    micro_batches = [part for parts in learner.pack(random_batch(1), 1) for part in parts]
    expected = full.passes.whole_logprobs(full.parallel_chunks, micro_batches, 1.0)
    found = learner.part(Reference).logprobs(micro_batches, 1.0)
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))
    moved = learner.passes.logprobs(learner.parallel_chunks, micro_batches, 1.0)
    assert max((left - right).abs().max() for left, right in zip(moved, found, strict=True)) > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_is_as_large_as_planned(folder: Path, dtype: str):
    learner = adapted_learner(folder, dtype)
    train(learner, 0, 1)
    planned = rank_memory(learner.shape, dtype=dtype, tokens_per_micro_batch=1, lora=Lora(**LORA))
    parameters = list(learner.model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    assert num_bytes(parameters) == planned.weights
    assert num_bytes(parameter.main_grad for parameter in trained) == planned.gradients
    assert not any(hasattr(each, "main_grad") for each in parameters if not each.requires_grad)
    states = learner.optimizer.chained_optimizers[0].optimizer.state.values()
    assert num_bytes(v for state in states for v in state.values() if v.numel() > 1) == planned.optimizer
    assert planned.reference == planned.output_gradient == 0


def test_a_spike_names_a_row_of_an_adapter(folder: Path):
    learner = adapted_learner(folder)
    train(learner, 0, 1)
    spike = learner.part(Spikes).largest_row(1.0, 1.0)
    assert spike is not None and spike.parameter.startswith("base_model.model.model.layers.")
    gradients = dict(export_weights(learner.model, lambda parameter: parameter.main_grad, of_adapters=True))
    lengths = {name: gradient.double().norm(dim=1) for name, gradient in gradients.items()}
    assert lengths[spike.parameter].argmax() == spike.row
    total = sum(float(each.square().sum()) for each in lengths.values())
    assert spike.share == pytest.approx(max(float(each.max()) for each in lengths.values()) ** 2 / total)


def test_a_critic_is_trained_as_a_whole(folder: Path):
    learner = adapted_learner(folder, advantage="gae")
    assert learner.part(Critic) is not None
    before = copy_weights(learner.part(Critic).model)
    train(learner, 0, 2)
    after = copy_weights(learner.part(Critic).model)
    assert not any(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_other_ranks_of_the_seed_begin_at_the_base_model(folder: Path):
    weights = dict(read_weights(folder))
    learner = adapted_learner(folder, lora={"rank": 5, "targets": ["k_proj"]})
    assert all(torch.equal(tensor, weights[name]) for name, tensor in copy_weights(learner.model).items())


TEMPERATURE = 0.7


@of_each_family("LoRA")
def test_merged_weights_have_the_log_probs_of_the_adapted_policy(architecture: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", architecture)
    learner = make_learner(
        folder,
        trainer={"learning_rate": 3e-2},
        model={"lora": {"rank": 2, "alpha": 8.0, **tiny(architecture).lora}},
    )
    batch = random_batch(0, longest=40, temperature=TEMPERATURE)
    micro = make_micro_batch(batch.sequences, 0)

    def found() -> torch.Tensor:
        (logprobs,) = learner.passes.logprobs(learner.parallel_chunks, [micro], TEMPERATURE)
        return logprobs

    before = found()
    # B begins as zero: A moves from the second step on.
    for step in range(2):
        learner.step(random_batch(step, temperature=TEMPERATURE))
    after = found()
    assert (after - before).abs().max() > 0.01, "the steps changed too little"
    export_model(learner.model, base=folder, target=tmp_path / "export")
    publisher = Publisher(tmp_path / "publications", base=folder, failed=pytest.fail)
    publication = publisher.write(2, learner.model)
    publisher.close()
    assert publication.digests == digests_of(dict(read_weights(tmp_path / "export")))
    assert publication.digests == digests_of(dict(read_weights(publication.folder)))
    # The other kernels of transformers leave soft caps out.
    reference = reference_model(tmp_path / "export", attn_implementation="eager")
    with torch.no_grad():
        expected = torch.cat([reference_logprobs(reference, one, TEMPERATURE) for one in batch.sequences])
    assert (after - expected).abs().max() < 1e-4
