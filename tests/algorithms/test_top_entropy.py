"""Tokens below the bound of entropy have no loss, and their place in the denominator."""

import dataclasses

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm


def test_only_the_top_tokens_are_taught_and_kl_is_on_all():
    algorithm = Algorithm(top_entropy_share=0.4, kl={"coefficient": 0.1, "estimator": "k2"})
    inputs = make_inputs(
        current=[-1.0, -2.0, -3.0], advantages=[1.0, -2.0, 4.0], reference=[-1.0, -1.0, -3.0]
    )
    inputs = dataclasses.replace(inputs, is_top=torch.tensor([True, False, True]))
    total, denominator, *_ = make_loss(algorithm, max_new_tokens=8)(inputs)
    assert (total.item(), denominator.item()) == (pytest.approx(-5.0 + 0.05), 3)
    assert gradient(total, inputs) == pytest.approx([-1.0, -0.1, -4.0])
    nearby = dataclasses.replace(inputs, current=inputs.current.detach() + torch.tensor([0.0, 1e-2, 0.0]))
    slope = (make_loss(algorithm, max_new_tokens=8)(nearby).total - total).item() / 1e-2
    assert slope == pytest.approx(-0.1, abs=2e-3)
