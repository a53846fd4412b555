"""Muon under Megatron's wrappers: the steps of torch's on the matrices that Hugging Face has."""

import math
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, write_model
from fakes.recipes import make_recipe
from families.known import write_tiny
from torch import Tensor

from asyncrl.model.memory import AdamStates, rank_memory
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.parts.critic import Critic
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer_state import held_states

MUON = {
    "optimizer": {"name": "muon", "learning_rate": 5e-3, "momentum": 0.9},
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "clip_grad_norm": 0.05,
}
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def is_matrix(name: str) -> bool:
    return "layers" in name and name.split(".")[-1] == "weight" and name.split(".")[-2] in MATRICES


def gradients(learner: Learner) -> dict[str, Tensor]:
    """Of the last step, by Hugging Face's names, as the buffers still have them: after clipping."""
    return {
        name: tensor.clone()
        for name, tensor in export_weights(learner.model, lambda parameter: parameter.main_grad)
    }


def test_steps_are_those_of_torch_on_the_matrices_of_hugging_face(tmp_path: Path):
    # Biases, and two key-value groups that Megatron interleaves.
    learner = make_learner(write_model(tmp_path / "model", "Qwen2"), trainer=MUON | {"warmup_steps": 2})
    expected = copy_weights(learner.model)
    matrices = {name: weight for name, weight in expected.items() if is_matrix(name)}
    others = {name: weight for name, weight in expected.items() if not is_matrix(name)}
    assert len(matrices) == 7 * 2
    muon = torch.optim.Muon(
        [*matrices.values()], momentum=0.9, weight_decay=0.1, ns_steps=5, adjust_lr_fn="match_rms_adamw"
    )
    decayed = [weight for weight in others.values() if weight.dim() == 2]
    adam = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.1},
            {"params": [weight for weight in others.values() if weight.dim() == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    for step in range(3):
        metrics = learner.step(random_batch(step))
        share = min(1.0, (step + 1) / 2)
        found = gradients(learner)
        total = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in found.values()))
        # One norm over the gradients of both.
        assert metrics["grad_norm"] > 0.05 and total == pytest.approx(0.05, rel=1e-3)
        for name, weight in expected.items():
            weight.grad = found[name]
        for optimizer, rate in ((muon, 5e-3), (adam, 1e-3)):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
        for name, tensor in copy_weights(learner.model).items():
            # Torch's own numbers, to the last digit: the same operations on the same gradient.
            tolerance = 0.0 if is_matrix(name) else 1e-6
            assert (tensor - expected[name]).abs().max() <= tolerance, name


def test_an_update_of_a_matrix_is_as_large_as_adams_learning_rate(tmp_path: Path):
    """Root mean square of about 0.2 learning rates, whatever the shape (arXiv 2502.16982, section 2.2)."""
    keys = {"optimizer": "muon", "learning_rate": 1e-2}
    learner = make_learner(write_model(tmp_path / "model"), trainer=keys)
    before = copy_weights(learner.model)
    learner.step(random_batch(0))
    for name, tensor in copy_weights(learner.model).items():
        if is_matrix(name):
            size = (tensor - before[name]).square().mean().sqrt()
            assert 0.1e-2 < size < 0.3e-2, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_learner_continues_bit_for_bit(dtype: str, tmp_path: Path):
    folder = write_model(tmp_path / "model")
    sections = {"model": {"dtype": dtype}, "trainer": MUON, "algorithm": {"advantage": "gae"}}
    learner = make_learner(folder, **sections)
    for step in range(2):
        learner.step(random_batch(step))
    Checkpoints(tmp_path / "kept", num_kept=1).save(learner, 2)
    learner.step(random_batch(2))
    resumed = make_learner(folder, **sections)
    assert Checkpoints(tmp_path / "kept", num_kept=1).load_newest(resumed) == 2
    resumed.step(random_batch(2))
    assert learner.part(Critic) is not None and resumed.part(Critic) is not None
    for ours, theirs in (
        (learner.model, resumed.model),
        (learner.part(Critic).model, resumed.part(Critic).model),
    ):
        expected = copy_weights(ours)
        for name, tensor in copy_weights(theirs).items():
            assert torch.equal(tensor, expected[name]), name


def test_bfloat16_weights_learn_from_float32_copies(tmp_path: Path):
    keys = MUON | {"optimizer": {"name": "muon", "learning_rate": 1e-5}, "weight_decay": 0.0}
    learner = make_learner(write_model(tmp_path / "model"), model={"dtype": "bfloat16"}, trainer=keys)
    states = held_states(learner.optimizer)
    name, weight = next(
        (name, weight) for name, weight in learner.model.named_parameters() if "linear_proj" in name
    )
    assert weight.dtype == torch.bfloat16 and states[weight].tensors.keys() == {"momentum_buffer", "param"}
    before = states[weight].tensors["param"].clone()
    learner.step(random_batch(0))
    after = held_states(learner.optimizer)[weight].tensors["param"]
    # Less than bfloat16 holds, and kept.
    assert 0 < (after - before).abs().max() < 1e-4, name
    assert torch.equal(weight, after.bfloat16())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["Qwen2ForCausalLM", "Qwen3MoeForCausalLM"])
def test_state_is_as_large_as_planned(family: str, dtype: str, tmp_path: Path):
    folder = write_tiny(tmp_path / "model", family)
    algorithm = {"advantage": "gae"} if family == "Qwen2ForCausalLM" else {}
    learner = make_learner(folder, model={"dtype": dtype}, trainer=MUON, algorithm=algorithm)
    section = make_recipe(folder, trainer=MUON).trainer
    planned, adam = (
        rank_memory(
            learner.shape, dtype=dtype, tokens_per_micro_batch=1, has_critic=bool(algorithm), adam=states
        )
        for states in (AdamStates.of(section), AdamStates())
    )
    critic = learner.part(Critic)
    sizes = [
        sum(tensor.nbytes for state in held_states(optimizer).values() for tensor in state.tensors.values())
        for optimizer in (learner.optimizer, *([critic.optimizer] if critic else []))
    ]
    assert sizes[0] == planned.optimizer < adam.optimizer
    if len(sizes) == 2:
        width = 8 if dtype == "float32" else 6
        assert planned.critic == sizes[1] + width * sum(p.numel() for p in critic.model.parameters())
    assert adam.optimizer - planned.optimizer == adam.checkpoint_copy - planned.checkpoint_copy
