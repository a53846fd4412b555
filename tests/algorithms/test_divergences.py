"""KL estimators: values, gradients, and what they estimate."""

import math

import pytest
import torch

from asyncrl.algorithms.divergences import DIVERGENCES, k1, k2, k3


@pytest.mark.parametrize(
    ("estimate", "value", "slope"),
    [(k1, 0.5, 1.0), (k2, 0.125, 0.5), (k3, math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))],
)
def test_each_estimator_has_its_value_and_gradient(estimate, value: float, slope: float):
    policy = torch.tensor([-1.0], requires_grad=True)
    found = estimate(policy, torch.tensor([-1.5]))
    assert found.item() == pytest.approx(value)
    assert torch.autograd.grad(found.sum(), policy)[0].item() == pytest.approx(slope)


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_a_reference_that_excludes_a_token_leaves_a_finite_number(name: str):
    found = DIVERGENCES[name](torch.tensor([-1.0, -900.0]), torch.tensor([-900.0, -1.0]))
    assert found.isfinite().all()


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
    for estimate, expected in ((k2, wanted), (k1, torch.zeros(3))):
        (got,) = torch.autograd.grad(
            (weights * estimate(logprobs, reference)).sum(), logits, retain_graph=True
        )
        assert torch.allclose(got, expected, atol=1e-6)
