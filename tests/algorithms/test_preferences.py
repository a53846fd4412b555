"""Losses of pairs, by hand: vectors of the papers' formulas and their gradients."""

import math

import pytest
import torch

from asyncrl.algorithms.preferences import dpo, ipo


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
