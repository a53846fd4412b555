"""Training in float16: gradients under a loss scale, and what a gradient that overflows does."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, write_model
from torch import Tensor

from asyncrl.errors import Diverged
from asyncrl.records import Batch
from asyncrl.recipe import Trainer
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.loss_scale import SMALLEST_SCALE, LossScaler, LossScaling, loss_scaler
from asyncrl.trainer.step.optimizer_state import adam_steps, held_states

FLOAT16 = {"dtype": "float16"}


def gradients(learner: Learner, batch: Batch) -> Tensor:
    """The unscaled gradient of a batch, all parameters in a row; the optimizer steps on it."""
    budget = learner.section.tokens_per_micro_batch
    learner.accumulate(
        rank_micro_batches(batch, budget_tokens=budget, rank=0, num_ranks=1), batch.temperature
    )
    found = export_weights(learner.model, lambda parameter: parameter.main_grad.float().clone())
    scaler = loss_scaler(learner.optimizer)
    return torch.cat([gradient.flatten() for _, gradient in found]) / (scaler.value() if scaler else 1.0)


def distance(left: Tensor, right: Tensor) -> float:
    """Relative."""
    return ((left - right).norm() / right.norm()).item()


def overflowing(batch: Batch) -> Batch:
    """The batch with advantages that no float16 gradient holds under a scale of 512 or more."""
    large = [dataclasses.replace(each, advantage=1e5 * each.advantage) for each in batch.sequences]
    return dataclasses.replace(batch, sequences=large)


def test_gradients_are_those_of_float32_and_rounded_finer_than_in_bfloat16(folder: Path):
    batch = random_batch(1)
    exact = gradients(make_learner(folder), batch)
    errors = {}
    for dtype in ("float16", "bfloat16"):
        errors[dtype] = distance(gradients(make_learner(folder, model={"dtype": dtype}), batch), exact)
    print(errors)
    assert errors["float16"] < 4e-3
    assert errors["float16"] < errors["bfloat16"] / 4


def test_x(folder):
    l = make_learner(folder, model=FLOAT16)
    for s in range(4):
        m = l.step(random_batch(s)); print({k: m[k] for k in ("loss","grad_norm","loss_scale","skipped_steps","optimizer_steps","learning_rate")})
    m = l.step(overflowing(random_batch(4))); print({k: m[k] for k in ("loss","grad_norm","loss_scale","skipped_steps","optimizer_steps","learning_rate")})
    m = l.step(random_batch(5)); print({k: m[k] for k in ("loss","grad_norm","loss_scale","skipped_steps","optimizer_steps","learning_rate")})
    for e in range(0,30,2):
        l2 = make_learner(folder, model=FLOAT16); loss_scaler(l2.optimizer).restore({"scale":2.0**e,"steps_since_change":0})
        print(e, distance(gradients(l2, random_batch(1)), gradients(make_learner(folder), random_batch(1))))
