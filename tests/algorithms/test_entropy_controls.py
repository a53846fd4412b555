"""Clip-Cov and KL-Cov: covariances computed by hand, and the gradients that are left."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs
from fakes.recipes import make_recipe

from asyncrl.algorithms.entropy_controls import covariances, low_probability
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.rejections import largest_float
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm


def test_covariances_are_products_of_two_differences():
    logprobs, advantages = torch.tensor([-1.0, -2.0, -3.0, -4.0]), torch.tensor([1.0, 1.0, -1.0, 0.0])
    # Means -2.5 and 0.25.
    found = covariances(logprobs, advantages, -2.5, 0.25).tolist()
    assert found == [1.5 * 0.75, 0.5 * 0.75, -0.5 * -1.25, -1.5 * -0.25]


def test_rounding_of_equal_tokens_in_two_micro_batches_is_no_difference():
    first, second = (
        covariances(torch.tensor([x]), torch.tensor([1.0]), -2.5, 0.0) for x in (-1.0, -1.0 + 1e-7)
    )
    assert torch.equal(first, second)


def hit_inputs(hit: list[bool]):
    inputs = make_inputs(
        current=[-1.0, -2.0, -0.5],
        proximal=[-1.1, -2.0, -0.4],
        behavior=[-1.1, -2.0, -0.4],
        advantages=[1.0, -1.0, 2.0],
    )
    return dataclasses.replace(inputs, hit=torch.tensor(hit))


def test_a_token_of_clip_cov_keeps_its_place_in_the_denominator_and_its_kl_alone():
    algorithm = Algorithm(entropy_control="clip_cov", kl={"coefficient": 0.1, "estimator": "k2"})
    inputs = hit_inputs([True, False, False])
    inputs = dataclasses.replace(inputs, reference=torch.tensor([-1.5, -2.0, -0.5]))
    total, denominator, *_ = make_loss(algorithm, max_new_tokens=8)(inputs)
    ratio = math.exp(-0.1)
    assert (denominator.item(), total.item()) == (3, pytest.approx(1.0 - 2 * ratio + 0.1 * 0.125))
    assert gradient(total, inputs) == pytest.approx([0.05, 1.0, -2 * ratio])


def test_a_token_of_kl_cov_is_pulled_back_by_the_sign_of_its_log_ratio():
    algorithm = Algorithm(entropy_control={"name": "kl_cov", "coefficient": 0.3})
    inputs = hit_inputs([True, True, True])
    total = make_loss(algorithm, max_new_tokens=8)(inputs).total
    assert total.item() == pytest.approx(-math.exp(0.1) + 1.0 - 2 * math.exp(-0.1) + 0.3 * 0.2)
    # Up by 0.1, unmoved, down by 0.1.
    assert gradient(total, inputs) == pytest.approx([-math.exp(0.1) + 0.3, 1.0, -2 * math.exp(-0.1) - 0.3])
    nearby = dataclasses.replace(inputs, current=inputs.current.detach() + torch.tensor([1e-3, 0.0, 0.0]))
    slope = (make_loss(algorithm, max_new_tokens=8)(nearby).total - total).item() / 1e-3
    assert slope == pytest.approx(-math.exp(0.1) + 0.3, abs=2e-3)


def test_the_largest_float_within_is_found_exactly():
    for bound in (0.0, 1e-40, 0.1, 1.0, 3.4e38):
        exact = torch.tensor(bound, dtype=torch.float32).item()
        assert largest_float(lambda b, bound=bound: b <= bound) <= exact
        assert largest_float(lambda b, exact=exact: b <= exact) == exact
    assert largest_float(lambda b: True) == math.inf


def test_a_control_that_cannot_work_is_refused():
    kl_cov = {"entropy_control": "kl_cov"}
    with pytest.raises(InputError, match="optimizer_steps_per_batch is 1: every policy ratio is 1"):
        make_recipe(Path("m"), algorithm=kl_cov)
    make_recipe(Path("m"), algorithm=kl_cov, trainer={"optimizer_steps_per_batch": 2})
    make_recipe(Path("m"), algorithm=kl_cov | {"proximal": "interpolated"})
    with pytest.raises(InputError, match="algorithm.entropy_control.low is 6.0 .* the range is empty"):
        make_recipe(Path("m"), algorithm={"entropy_control": {"name": "clip_cov", "low": 6.0}})


@pytest.mark.parametrize(
    "algorithm",
    [
        {"entropy_control": {"share": 0.1}},
        {"entropy_control": {"low": 0.5}},
        {"entropy_control": {"name": "clip_cov", "coefficient": 1.0}},
        {"entropy_bonus": {"step": 0.1}},
        {"entropy_bonus": {"max_coefficient": 0.1}},
    ],
)
def test_a_key_of_what_is_off_is_refused(algorithm: dict):
    ((key, numbers),) = algorithm.items()
    *_, number = numbers
    with pytest.raises(InputError, match=f"algorithm.{key}.{number} is .* but nothing reads it: set"):
        make_recipe(Path("m"), algorithm=algorithm)


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
