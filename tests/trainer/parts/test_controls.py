"""The weight of the entropy bonus, step by step, and over a checkpoint."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.loss_inputs import make_inputs
from fakes.models import random_batch
from fakes.recipes import make_recipe

from asyncrl.algorithms.losses import make_loss
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.parts.controls import EntropyTarget


def test_the_weight_rises_at_or_below_the_target_falls_above_it_and_is_off_there():
    keys = {"entropy_bonus": {"target": 0.2, "step": 0.25, "coefficient": 0.5}}
    control = EntropyTarget(None, make_recipe(Path("m"), algorithm=keys))
    seen = [control.coefficient()]
    for entropy in (0.3, 0.1, 0.2, 0.1, 0.1, math.nan, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1):
        control.saw(entropy)
        seen.append(control.coefficient())
    # c is 0.5, 0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0.25.
    assert seen == [0.5, 0.0, 0.5, 0.75, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25]


def test_the_weight_of_the_step_takes_the_place_of_the_recipe_s_in_the_loss():
    inputs = make_inputs(current=[-1.0, -2.0], advantages=[0.0, 0.0], entropies=[1.0, 3.0])
    loss = make_loss(Algorithm(entropy_bonus={"coefficient": 0.5}), max_new_tokens=8)
    total = loss(dataclasses.replace(inputs, entropy_coefficient=0.02)).total
    assert total.item() == pytest.approx(-0.08)
    (slopes,) = torch.autograd.grad(total, inputs.entropies)
    assert slopes.tolist() == pytest.approx([-0.02, -0.02])
    assert loss(dataclasses.replace(inputs, entropy_coefficient=0.0)).total.item() == 0.0


def test_a_step_from_a_checkpoint_has_the_weight_and_the_weights_of_one_without(folder: Path, tmp_path: Path):
    keys = {"entropy_bonus": {"target": 100.0, "step": 0.02}}
    # Without advantages too: the bonus alone teaches, where its weight is above 0.
    batches = [random_batch(step, num_silent=(0, 4, 2)[step]) for step in range(3)]
    learner = make_learner(folder, algorithm=keys)
    seen = [learner.step(batch)["entropy_coefficient"] for batch in batches[:2]]
    assert seen == [0.0, 0.02]
    checkpoints = Checkpoints(tmp_path, num_kept=1)
    checkpoints.save(learner, 2)
    resumed = make_learner(folder, algorithm=keys)
    assert checkpoints.load_newest(resumed) == 2
    metrics = [each.step(batches[2]) for each in (learner, resumed)]
    assert metrics[0] == pytest.approx(metrics[1], rel=0, abs=0, nan_ok=True)
    assert metrics[0]["entropy_coefficient"] == 0.04
    left, right = (copy_weights(each.model) for each in (learner, resumed))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_first_weight_above_the_largest_is_refused():
    algorithm = {"entropy_bonus": {"target": 0.2, "coefficient": 0.5, "max_coefficient": 0.1}}
    with pytest.raises(InputError, match="entropy_bonus.coefficient is 0.5 but .* 0.1"):
        make_recipe(Path("m"), algorithm=algorithm)
