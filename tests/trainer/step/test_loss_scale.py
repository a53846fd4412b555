"""Training in float16: gradients under a loss scale, and what a gradient that overflows does."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from fakes.launch_trainer import finish_trainer
from fakes.learners import copy_weights, is_same, make_learner
from fakes.models import random_batch
from fakes.template import Template
from torch import Tensor

from asyncrl.errors import Diverged
from asyncrl.recipe import Trainer
from asyncrl.recipe.sections.trainer import SMALLEST_LOSS_SCALE
from asyncrl.records import Batch
from asyncrl.system.network import free_ports
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.parts.critic import Critic
from asyncrl.trainer.parts.records import Spikes
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer_state import LossScaler, LossScaling, adam_steps, held_states, loss_scaler
from asyncrl.trainer.step.part import MiniBatch

TRAINER = {"learning_rate": 1e-3, "warmup_steps": 8, "weight_decay": 0.1, "initial_loss_scale": 256.0}


def half_learner(folder: Path, *, algorithm: dict | None = None, **trainer: object) -> Learner:
    return make_learner(
        folder, model={"dtype": "float16"}, trainer=TRAINER | trainer, algorithm=algorithm or {}
    )


def scaler_of(trained: Learner | Critic) -> LossScaler:
    scaler = loss_scaler(trained.optimizer)
    assert scaler is not None
    return scaler


def gradient(learner: Learner, batch: Batch) -> Tensor:
    """The gradient of a batch before it is unscaled, all parameters in a row."""
    budget = learner.section.tokens_per_micro_batch
    parts = rank_micro_batches(batch, budget_tokens=budget, rank=0, num_ranks=1)
    learner.accumulate(MiniBatch(parts, batch.temperature))
    found = export_weights(learner.model, lambda parameter: parameter.main_grad.float().clone())
    return torch.cat([each.flatten() for _, each in found])


def distance(left: Tensor, right: Tensor) -> float:
    """Norm of the difference, as a share."""
    return ((left - right).norm() / right.norm()).item()


def overflowing(step: int) -> Batch:
    """Advantages so large that float16 has no number for the gradient of a logit."""
    batch = random_batch(step)
    large = [dataclasses.replace(each, advantage=1e5 * each.advantage) for each in batch.sequences]
    return dataclasses.replace(batch, sequences=large)


def everything(trained: Learner | Critic) -> dict[str, Tensor]:
    """Weights, float32 copies and moments."""
    states = held_states(trained.optimizer).values()
    found = {f"{i} {name}": x.clone() for i, s in enumerate(states) for name, x in s.tensors.items()}
    return found | copy_weights(trained.model)


def test_gradients_are_those_of_float32_whatever_the_scale_and_the_micro_batches(folder: Path):
    batch = random_batch(1)
    exact = gradient(make_learner(folder), batch)
    coarse = gradient(make_learner(folder, model={"dtype": "bfloat16"}), batch)
    whole = gradient(half_learner(folder), batch) / 256
    # Rounding of 11 bits, of weights and of each layer's outputs; bfloat16 has 8.
    assert distance(whole, exact) < 5e-3 < 15e-3 < distance(coarse, exact)
    split = gradient(half_learner(folder, tokens_per_micro_batch=30), batch) / 256
    assert 0.0 < distance(split, whole) < 3e-3
    smaller = gradient(half_learner(folder, initial_loss_scale=16.0), batch) / 16
    # A power of two rounds nothing but the smallest gradients.
    assert distance(smaller, whole) < 1e-4


def test_a_gradient_that_overflows_takes_no_step_and_halves_the_scale(folder: Path):
    learner, other = half_learner(folder), half_learner(folder)
    learner.step(random_batch(1))
    other.step(random_batch(1))
    before, count = everything(learner), adam_steps(learner.optimizer)
    metrics = learner.step(overflowing(2))
    names = ("optimizer_steps", "skipped_steps", "grad_norm", "learning_rate", "loss_scale")
    assert [metrics[name] for name in names] == [0.0, 1.0, 0.0, 0.0, 128.0]
    assert metrics["surviving_tokens"] > 0
    assert is_same(everything(learner), before) and adam_steps(learner.optimizer) == count == 1
    assert learner.part(Spikes).pop() is None and len(learner.part(Spikes)._norms) == 1
    # What comes next is as if that step had not been, but for the scale. The learning rate is a function of
    # the step's number alone.
    scaler_of(other).restore(LossScaling(scale=128.0, steps_since_change=0))
    after, wanted = learner.step(random_batch(3)), other.step(random_batch(3))
    assert after == wanted and after["learning_rate"] == pytest.approx(0.5e-3)
    assert (after["optimizer_steps"], after["skipped_steps"], after["loss_scale"]) == (1.0, 0.0, 128.0)
    assert is_same(everything(learner), everything(other)) and not is_same(everything(learner), before)


def test_only_the_mini_batch_that_overflows_is_skipped(folder: Path):
    learner = half_learner(folder, optimizer_steps_per_batch=2, mini_batch_order="batch")
    batch, large = random_batch(1), overflowing(1)
    half = len(batch.sequences) // 2
    mixed = dataclasses.replace(batch, sequences=large.sequences[:half] + batch.sequences[half:])
    metrics = learner.step(mixed)
    names = ("optimizer_steps", "skipped_steps", "loss_scale")
    assert [metrics[name] for name in names] == [1.0, 1.0, 128.0] and metrics["grad_norm"] > 0


def test_the_scale_grows_after_steps_without_an_overflow():
    scaler = LossScaler(Trainer(initial_loss_scale=64.0, loss_scale_growth_steps=2))
    found = []
    for overflows in ([False, False], [False, False], [False, True], [True, True], [False] * 2, [False] * 2):
        for each in overflows:
            # Megatron's call of each optimizer that it has chained.
            scaler.update(each)
        assert scaler.settle() == any(overflows)
        found.append(scaler.value())
    assert found == [64.0, 128.0, 64.0, 32.0, 32.0, 64.0]


def test_an_overflow_that_no_scale_helps_ends_the_run(folder: Path):
    learner = half_learner(folder)
    scaler_of(learner).restore(LossScaling(scale=SMALLEST_LOSS_SCALE, steps_since_change=0))
    huge = overflowing(2)
    far = [dataclasses.replace(each, advantage=1e5 * each.advantage) for each in huge.sequences]
    with pytest.raises(
        Diverged, match=r"Set model\.dtype to bfloat16.*step 3 .*at a loss scale of 0\.000976"
    ):
        learner.step(dataclasses.replace(huge, sequences=far))
    # Activations that overflow make a loss that is no number: no gradient under any scale is finite.
    learner = half_learner(folder)
    with torch.no_grad():
        for chunk in learner.model:
            chunk.decoder.final_layernorm.weight.fill_(6e4)
    learner.weights_changed()
    with pytest.raises(Diverged, match=r"at a loss scale of 256, and the loss is nan"):
        learner.step(random_batch(1))


def test_the_critic_has_a_scale_of_its_own(folder: Path):
    gae = {"advantage": {"name": "gae", "gae_lambda": 0.9}}
    learner = half_learner(folder, algorithm=gae)
    learner.step(random_batch(1))
    critic = learner.part(Critic)
    assert critic is not None
    before = everything(critic), copy_weights(learner.model)
    scaler_of(critic).restore(LossScaling(scale=2.0**40, steps_since_change=0))
    metrics = learner.step(random_batch(2))
    names = ("critic_skipped_steps", "critic_loss_scale", "critic_grad_norm", "critic_learning_rate")
    assert [metrics[name] for name in names] == [1.0, 2.0**39, 0.0, 0.0]
    assert (metrics["skipped_steps"], metrics["loss_scale"], metrics["optimizer_steps"]) == (0.0, 256.0, 1.0)
    assert is_same(everything(critic), before[0]) and not is_same(copy_weights(learner.model), before[1])
    scaler_of(critic).restore(LossScaling(scale=64.0, steps_since_change=0))
    metrics = learner.step(random_batch(3))
    assert (metrics["critic_skipped_steps"], metrics["critic_loss_scale"]) == (0.0, 64.0)
    assert metrics["critic_grad_norm"] > 0 and not is_same(everything(critic), before[0])


def test_other_types_have_no_scale(folder: Path):
    for dtype in ("float32", "bfloat16"):
        learner = make_learner(folder, model={"dtype": dtype})
        assert loss_scaler(learner.optimizer) is None
        assert not {"loss_scale", "skipped_steps"} & learner.step(random_batch(1)).keys()


def test_an_overflow_on_one_rank_is_skipped_by_all(folder: Path, template: Template, tmp_path: Path):
    layouts = [{"pipeline": 2}, {"tensor": 2}, {"distributed_optimizer": True}]
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_PORT": str(free_ports(1)[0])}
    arguments = [str(folder), json.dumps(layouts)]
    with (tmp_path / "log").open("ab") as output:
        ranks = [
            template.start(
                "fakes.overflow_worker",
                arguments,
                environment=environment | {"RANK": str(rank)},
                output=output,
            )
            for rank in range(2)
        ]
    assert finish_trainer(ranks, timeout_seconds=300) == [0, 0], (tmp_path / "log").read_text()[-6000:]
