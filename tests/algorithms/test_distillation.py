"""On-policy distillation: the advantage of a token by hand, and what a surrogate makes of it."""

import dataclasses
import math

import pytest
import torch
from fakes.loss_inputs import make_inputs

from asyncrl.algorithms.distillation import teacher_advantages, top_k_forward_kl
from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm

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
