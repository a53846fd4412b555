"""Damping of unlikely tokens: values by hand, and a gradient that does not see the factor."""

import dataclasses
import math

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.token_scales import low_probability
from asyncrl.recipe import Algorithm


def damped_inputs():
    logs = [math.log(p) for p in (0.9, 0.1, 0.5)]
    return make_inputs(current=logs, advantages=[1.0, -2.0, 0.0])


def test_an_advantage_is_scaled_between_1_less_a_and_1():
    algorithm = Algorithm(probability_damping=0.2)
    assert low_probability(damped_inputs(), algorithm).tolist() == pytest.approx([0.98, -1.64, 0.0])
    whole = Algorithm(probability_damping=1.0)
    assert low_probability(damped_inputs(), whole).tolist() == pytest.approx([0.9, -0.2, 0.0])


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_the_factor_has_no_gradient_of_its_own_under_any_surrogate(surrogate: str):
    inputs = dataclasses.replace(damped_inputs(), sequence_ids=torch.tensor([0, 1, 2]))
    plain, damped = (
        torch.tensor(gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs))
        for algorithm in (Algorithm(surrogate=surrogate, probability_damping=a) for a in (0.0, 0.2))
    )
    assert plain.abs().sum() > 0
    assert damped.tolist() == pytest.approx((plain * torch.tensor([0.98, 0.82, 0.9])).tolist(), rel=1e-5)


def test_numeric_slope_with_the_factor_held_still():
    algorithm = Algorithm(probability_damping=0.2, surrogate="reinforce")
    inputs = damped_inputs()
    factor = low_probability(inputs, algorithm) / inputs.advantages.where(inputs.advantages != 0, 1.0)
    loss = make_loss(Algorithm(surrogate="reinforce"), max_new_tokens=8)
    held = dataclasses.replace(inputs, advantages=inputs.advantages * factor)
    nearby = dataclasses.replace(held, current=held.current.detach() + torch.tensor([0.0, 1e-2, 0.0]))
    slope = (loss(nearby).total - loss(held).total).item() / 1e-2
    total = make_loss(algorithm, max_new_tokens=8)(inputs).total
    assert gradient(total, inputs)[1] == pytest.approx(slope, rel=1e-3) == pytest.approx(1.64, rel=1e-3)
