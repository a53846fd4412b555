import math

import pytest
import torch

from asyncrl.trainer.logprobs import token_logprobs


def test_log_probs_are_of_the_tempered_distribution():
    # logits / 0.5 = (0, 2 ln 3): probabilities 1 / 10 and 9 / 10
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    logprobs, entropies = token_logprobs(logits, torch.tensor([0, 1]), 0.5)
    assert logprobs.tolist() == pytest.approx([math.log(0.1), math.log(0.9)])
    assert entropies.tolist() == pytest.approx([-0.1 * math.log(0.1) - 0.9 * math.log(0.9)] * 2)


def test_bfloat16_logits_are_normalised_in_float32():
    logits = torch.randn(3, 50, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    logprobs, _ = token_logprobs(logits, torch.tensor([1, 2, 3]), 1.0)
    assert logprobs.dtype is torch.float32
    expected = torch.log_softmax(logits.double(), -1)[torch.arange(3), torch.tensor([1, 2, 3])]
    assert (logprobs - expected).abs().max() < 1e-6


def test_the_gradient_is_one_hot_minus_probabilities_over_temperature():
    logits = torch.tensor([[0.0, math.log(3)]], requires_grad=True)
    logprobs, _ = token_logprobs(logits, torch.tensor([0]), 0.5)
    logprobs.sum().backward()
    assert logits.grad.tolist()[0] == pytest.approx([(1 - 0.1) / 0.5, -0.9 / 0.5])


def test_an_impossible_token_has_a_finite_entropy_beside_it():
    logits = torch.tensor([[0.0, float("-inf")]])
    logprobs, entropies = token_logprobs(logits, torch.tensor([0]), 1.0)
    assert logprobs.item() == 0.0 and entropies.item() == 0.0
