"""Proximal policies against values computed by hand, and the gradient of a loss around them."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs
from fakes.recipes import make_recipe

from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.proximal import forward, interpolated
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm


def logs(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def test_an_interpolated_policy_is_a_kth_of_the_way_back():
    """m .5, p .6, lag 4: q .573266, rho 1.146531, x 1.046635."""
    (q,) = interpolated(logs(0.6), logs(0.5), torch.tensor([4])).exp().tolist()
    assert q == pytest.approx(0.573266, abs=5e-7)
    assert q / 0.5 == pytest.approx(1.146531, abs=1e-6) and 0.6 / q == pytest.approx(1.046635, abs=1e-6)


def test_it_is_mu_at_a_staleness_of_1_and_the_policy_itself_at_0():
    policy, behavior = logs(0.6, 0.6, 0.6, 0.6), logs(0.5, 0.5, 0.5, 0.5)
    found = interpolated(policy, behavior, torch.tensor([0, 1, 2, 1000])).exp().tolist()
    assert found == pytest.approx([0.6, 0.5, math.sqrt(0.3), 0.6 * (5 / 6) ** 0.001])
    assert forward(policy, behavior, torch.tensor([3] * 4)) is policy


def test_weight_times_ratio_is_the_whole_ratio_in_the_gradient():
    current, behavior = logs(0.6, 0.2), logs(0.5, 0.25)
    inputs = make_inputs(current=current.tolist(), behavior=behavior.tolist(), advantages=[1.0, -2.0])
    lags = torch.tensor([4, 3])
    proximal = interpolated(inputs.current.detach(), inputs.behavior, lags)
    inputs = dataclasses.replace(inputs, proximal=proximal)
    algorithm = Algorithm(proximal="interpolated")
    total = make_loss(algorithm, max_new_tokens=8)(inputs).total
    assert gradient(total, inputs) == pytest.approx([-1.2, 2 * 0.8], rel=1e-5)
    # The proximal policy has no gradient of its own: a difference with it held still.
    nearby = dataclasses.replace(inputs, current=inputs.current.detach() + torch.tensor([1e-3, 0.0]))
    slope = (make_loss(algorithm, max_new_tokens=8)(nearby).total - total).item() / 1e-3
    assert slope == pytest.approx(-1.2, rel=2e-3)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"algorithm": {"clip_around": "behavior", "importance_weight": "none"}},
            "no ratio is taken against",
        ),
        ({"algorithm": {"surrogate": "reinforce"}}, "reinforce has no ratio"),
        ({"rollout": {"max_staleness": 0}}, "no token is stale"),
    ],
)
def test_an_interpolated_policy_that_nothing_uses_is_refused(sections: dict, words: str):
    algorithm = sections.get("algorithm", {}) | {"proximal": "interpolated"}
    with pytest.raises(InputError, match=words):
        make_recipe(Path("m"), **(sections | {"algorithm": algorithm}))
