"""KL estimators: values, gradients, and what they estimate."""

import dataclasses
import math

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.divergences import (
    DIVERGENCES,
    divergence,
    dpo,
    ipo,
    k1,
    k2,
    k3,
    k3_plus,
    teacher_advantages,
    top_k_forward_kl,
)
from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm


@pytest.mark.parametrize(
    ("estimate", "value", "slope"),
    [(k1, 0.5, 1.0), (k2, 0.125, 0.5), (k3, math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))],
)
def test_each_estimator_has_its_value_and_gradient(estimate, value: float, slope: float):
    policy = torch.tensor([-1.0], requires_grad=True)
    found = estimate(policy, torch.tensor([-1.5]))
    assert found.item() == pytest.approx(value)
    assert torch.autograd.grad(found.sum(), policy)[0].item() == pytest.approx(slope)


@pytest.mark.parametrize("name", [*DIVERGENCES, "unbiased"])
@pytest.mark.parametrize("distance", [-900.0, -100.0, -25.0, 25.0, 100.0, 900.0])
def test_however_far_the_reference_is_the_pull_is_finite_and_towards_it(name: str, distance: float):
    inputs = make_inputs(current=[-1.0], reference=[-1.0 - distance])
    found = divergence(name, inputs)
    (slope,) = gradient(found.sum(), inputs)
    assert found.isfinite().all() and math.isfinite(slope)
    assert slope == 1.0 if name == "k1" else slope * distance > 0


def test_beyond_where_an_exponential_is_finite_k3_is_its_tangent():
    ends = [k3(torch.tensor([x], dtype=torch.float64), torch.zeros(1)).item() for x in (-19.999, -20.001)]
    assert (ends[1] - ends[0]) / 0.002 == pytest.approx(math.exp(20) - 1, rel=2e-3)
    values = k3(torch.tensor([-20.0, -21.0], dtype=torch.float64), torch.zeros(2)).tolist()
    assert values[1] - values[0] == pytest.approx(math.exp(20) - 1)


def test_each_kl_has_the_value_and_the_gradient_worked_out_by_hand():
    """Two tokens, sampled with 0.5 and 0.2, now of probability 0.6 and 0.1; the reference has 0.3 and 0.4."""
    wanted = {
        "k3": ([0.193147, 1.613706], [0.5, -3.0]),
        "k3_plus": ([0.193147, 1.613706], [0.693147, -1.386294]),
        # With r detached it would be r (1 - e^-d): 0.6 and -1.5.
        "unbiased": ([1.2 * 0.193147, 0.5 * 1.613706], [0.831777, -0.693147]),
    }
    for name, (values, slopes) in wanted.items():
        inputs = make_inputs(
            current=[math.log(0.6), math.log(0.1)],
            behavior=[math.log(0.5), math.log(0.2)],
            reference=[math.log(0.3), math.log(0.4)],
        )
        found = divergence(name, inputs)
        assert found.tolist() == pytest.approx(values, abs=1e-6)
        assert gradient(found.sum(), inputs) == pytest.approx(slopes, abs=1e-6)


def test_the_weighted_kl_has_the_gradient_of_the_kl_whatever_policy_sampled():
    logits = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    behavior = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    logprobs = torch.log_softmax(logits, -1)
    kl = (logprobs.exp() * (logprobs - reference)).sum()
    (wanted,) = torch.autograd.grad(kl, logits, retain_graph=True)
    # A token of each kind, as often as the behavior policy samples it.
    inputs = make_inputs(current=[0.0] * 3, behavior=behavior.log().tolist())
    inputs = dataclasses.replace(inputs, current=logprobs, behavior=behavior.log(), reference=reference)
    found = (behavior * divergence("unbiased", inputs)).sum()
    assert found.item() == pytest.approx(kl.item())
    (got,) = torch.autograd.grad(found, logits)
    assert torch.allclose(got, wanted, atol=1e-12)


def test_k1_and_k3_have_the_kl_as_their_mean_over_the_policy():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    kl = (policy * (policy / reference).log()).sum().item()
    for estimate in (k1, k3):
        assert (policy * estimate(policy.log(), reference.log())).sum().item() == pytest.approx(kl)


def test_k2_in_the_loss_has_the_gradient_of_the_kl_and_k1_has_none():
    logits = torch.tensor([0.4, -0.3, 0.1], requires_grad=True)
    reference = torch.tensor([0.5, 0.25, 0.25]).log()
    logprobs = torch.log_softmax(logits, -1)
    (wanted,) = torch.autograd.grad(
        (logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True
    )
    weights = logprobs.exp().detach()
    for estimate, expected in ((k2, wanted), (k3_plus, wanted), (k1, torch.zeros(3))):
        (got,) = torch.autograd.grad(
            (weights * estimate(logprobs, reference)).sum(), logits, retain_graph=True
        )
        assert torch.allclose(got, expected, atol=1e-6)


BEHAVIOR, TEACHER, CURRENT = 0.5, 0.3, 0.6


def test_a_token_that_the_teacher_finds_less_likely_has_a_negative_advantage_by_its_log_ratio() -> None:
    behavior = torch.tensor([math.log(0.5), math.log(0.25), math.nan, -math.inf])
    teacher = torch.tensor([math.log(0.3), math.log(0.5), -1.0, -1.0])
    found = teacher_advantages(behavior, teacher, 2.0)
    assert found.tolist() == pytest.approx([2 * math.log(0.6), 2 * math.log(2.0), 0.0, 0.0], abs=1e-6)


def test_the_loss_and_its_gradient_are_the_truncated_weight_times_the_log_ratio() -> None:
    advantage = teacher_advantages(torch.tensor([math.log(BEHAVIOR)]), torch.tensor([math.log(TEACHER)]), 1.0)
    inputs = make_inputs(
        current=[math.log(CURRENT)], behavior=[math.log(BEHAVIOR)], advantages=advantage.tolist()
    )
    loss = make_loss(Algorithm(importance_weight={"name": "truncated", "cap": 2.0}), max_new_tokens=8)
    total = loss(inputs).total
    # (0.6 / 0.5) ln(0.5 / 0.3), times a policy ratio of 1.
    assert total.item() == pytest.approx(1.2 * 0.5108256, abs=1e-6)
    (gradient,) = torch.autograd.grad(total, inputs.current)
    assert gradient.item() == pytest.approx(1.2 * 0.5108256, abs=1e-6)


def test_the_expected_gradient_is_that_of_the_reverse_kl() -> None:
    """Over all tokens of an on-policy distribution: sum_i p_i (ln p_i - ln t_i) d ln p_i."""
    logits = torch.tensor([0.3, -0.2, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([1.0, 0.5, -0.5, 0.2], dtype=torch.float64), 0)
    logprobs = torch.log_softmax(logits, 0)
    (wanted,) = torch.autograd.grad((logprobs.exp() * (logprobs - teacher)).sum(), logits, retain_graph=True)
    behavior = logprobs.detach()
    advantages = teacher_advantages(behavior, teacher, 1.0)
    (found,) = torch.autograd.grad(-(behavior.exp() * advantages * logprobs).sum(), logits)
    assert torch.allclose(found, wanted, atol=1e-12)


def test_the_forward_kl_over_two_of_three_tokens_and_its_gradient_by_hand() -> None:
    teacher = torch.tensor([[math.log(0.6), math.log(0.3), -math.inf]])
    logits = torch.tensor([[math.log(0.5), math.log(0.4), math.log(0.1)]], requires_grad=True)
    logprobs = torch.log_softmax(logits, 1)
    found = top_k_forward_kl(teacher, (teacher.exp() * logprobs).sum(1))
    # 0.6 ln(0.6 / 0.5) + 0.3 ln(0.3 / 0.4)
    assert found.item() == pytest.approx(0.1093930 - 0.0863046, abs=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    # M p - t with M = 0.9, and M p where the teacher has nothing.
    assert gradient.tolist()[0] == pytest.approx([0.45 - 0.6, 0.36 - 0.3, 0.09], abs=1e-6)


def test_the_forward_kl_is_a_penalty_by_its_coefficient_without_an_importance_weight() -> None:
    inputs = dataclasses.replace(
        make_inputs(current=[math.log(0.6)] * 2, behavior=[math.log(0.5)] * 2, advantages=[0.0, 0.0]),
        forward_kl=torch.tensor([0.25, 0.5]),
        forward_kl_coefficient=2.0,
        mask=torch.tensor([True, False]),
    )
    loss = make_loss(Algorithm(importance_weight={"name": "truncated", "cap": 2.0}), max_new_tokens=8)
    assert loss(inputs).total.item() == pytest.approx(0.5)


def test_dpo_and_ipo_have_the_values_and_gradients_of_their_formulas() -> None:
    # The policy has -10 and -12, the reference -11 and -11.5.
    h = torch.tensor([(-10.0 + 12.0) - (-11.0 + 11.5)], dtype=torch.float64, requires_grad=True)
    loss = dpo(h, beta=0.1)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.620957, abs=1e-6)
    assert h.grad.item() == pytest.approx(-0.046257, abs=1e-6)
    h.grad = None
    loss = ipo(h, beta=0.1)
    loss.sum().backward()
    assert (loss.item(), h.grad.item()) == pytest.approx((12.25, -7.0))


def test_label_smoothing_mixes_the_loss_of_the_swapped_pair() -> None:
    h = torch.tensor([1.5, -0.5], dtype=torch.float64)
    mixed = 0.8 * dpo(h, beta=2.0) + 0.2 * dpo(-h, beta=2.0)
    torch.testing.assert_close(dpo(h, beta=2.0, label_smoothing=0.2), mixed)
    assert dpo(torch.zeros(1), beta=2.0, label_smoothing=0.2).item() == pytest.approx(math.log(2))
