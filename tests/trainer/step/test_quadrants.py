"""The gradient by quadrant, against the derivative of the loss token by token."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import make_learner
from fakes.loss_inputs import gradient, make_inputs
from fakes.models import random_batch

from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm
from asyncrl.trainer.step.token_sums import (
    NUM_QUADRANT_SUMS,
    QUADRANTS,
    quadrant_metrics,
    quadrant_sums,
    watch_quadrants,
)

PROBABILITIES = [0.9, 0.6, 0.5, 0.4, 0.1, 0.2, 0.8]
ADVANTAGES = [1.0, -2.0, 3.0, 0.5, -1.0, 0.0, 4.0]
MASK = [True, True, True, True, True, True, False]
BY_HAND = ["likely_positive", "likely_negative", "likely_positive", "unlikely_positive", "unlikely_negative"]
"""Quadrants of the first five tokens; the sixth has no advantage, the seventh does not count."""


def quadrant_inputs():
    logs = [math.log(p) for p in PROBABILITIES]
    behavior = [log - 0.3 for log in logs]
    return make_inputs(
        current=logs, behavior=behavior, advantages=ADVANTAGES, mask=MASK, reference=[-1.0] * 7
    )


def test_shares_are_those_of_the_derivatives_of_the_loss():
    inputs, algorithm = quadrant_inputs(), Algorithm(kl={"coefficient": 0.1})
    slopes = gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs)
    wanted = dict.fromkeys(QUADRANTS, 0.0)
    for name, slope in zip(BY_HAND, slopes, strict=False):
        wanted[name] += abs(slope)
    inputs = quadrant_inputs()
    sums = quadrant_sums(inputs)
    watch_quadrants(inputs, sums)
    make_loss(algorithm, max_new_tokens=8)(inputs).total.backward()
    found = quadrant_metrics(sums)
    for name in QUADRANTS:
        assert found[f"gradient_share_{name}"] == pytest.approx(wanted[name] / sum(wanted.values()), rel=1e-5)
        assert found[f"token_share_{name}"] == BY_HAND.count(name) / 5


def test_without_a_backward_pass_tokens_have_shares_and_the_gradient_has_none():
    inputs = quadrant_inputs()
    inputs = dataclasses.replace(inputs, current=inputs.current.detach())
    sums = quadrant_sums(inputs)
    watch_quadrants(inputs, sums)
    found = quadrant_metrics(sums)
    assert found["token_share_likely_positive"] == 2 / 5
    assert math.isnan(found["gradient_share_likely_positive"])
    assert all(math.isnan(value) for value in quadrant_metrics(torch.zeros(NUM_QUADRANT_SUMS)).values())


def test_a_step_has_the_same_shares_however_packed_and_they_add_up(folder: Path):
    batch = random_batch(3, num_groups=6, num_silent=2)
    found = [
        make_learner(folder, trainer={"tokens_per_micro_batch": budget, "optimizer_steps_per_batch": 2}).step(
            batch
        )
        for budget in (8192, 30)
    ]
    for kind in ("token", "gradient"):
        names = [f"{kind}_share_{name}" for name in QUADRANTS]
        assert sum(found[0][name] for name in names) == pytest.approx(1.0)
        assert [found[0][name] for name in names] == pytest.approx(
            [found[1][name] for name in names], rel=1e-5
        )
    assert found[0]["gradient_share_unlikely_positive"] > 0.0
