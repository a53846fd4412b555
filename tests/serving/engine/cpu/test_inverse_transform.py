"""Sampled tokens follow softmax(logits / temperature), and their log-probs are those of that distribution."""

import math

import pytest
import torch
from torch import Tensor

from asyncrl.serving.engine.cpu import inverse_transform
from asyncrl.serving.engine.cpu.inverse_transform import ALMOST_ONE, BLOCK, sample


def random_logits(num_rows: int, num_words: int) -> Tensor:
    return 4 * torch.randn(num_rows, num_words, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_words", [1, 24, BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_tempered_softmax(num_words: int, temperature: float):
    logits = random_logits(5, num_words)
    exact = torch.log_softmax(logits.double() / temperature, -1)
    tokens, logprobs = sample(logits.clone(), torch.full((5, 1), temperature))
    assert tokens.dtype is torch.int32 and logprobs.dtype is torch.float32
    expected = exact.gather(1, tokens[:, None].long()).squeeze(1)
    assert torch.allclose(logprobs.double(), expected, atol=2e-6)


def test_tokens_are_as_frequent_as_probable():
    # Two blocks, the second of 44 words; the draws of a row are those of 100,000 equal rows.
    row = torch.randn(300, generator=torch.Generator().manual_seed(1)).mul(2)
    row[7] = -math.inf
    torch.manual_seed(2)
    num_draws = 100_000
    tokens, _ = sample(row.repeat(num_draws, 1), torch.full((num_draws, 1), 0.8))
    counts = torch.bincount(tokens.long(), minlength=300).double()
    expected = num_draws * torch.softmax(row.double() / 0.8, -1)
    assert counts[7] == 0
    kept = expected > 5
    # Chi-squared with about 200 degrees of freedom: 5 standard deviations (20 each) above its mean.
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert kept.sum() > 150 and statistic < kept.sum() + 5 * math.sqrt(2 * kept.sum())


def test_greedy_rows_take_the_likeliest_word_and_the_others_are_drawn():
    logits = random_logits(400, 40)[:1].repeat(400, 1)
    is_greedy = torch.arange(400) % 2 == 0
    tokens, logprobs = sample(logits.clone(), torch.ones(400, 1), is_greedy)
    assert set(tokens[is_greedy].tolist()) == {int(logits[0].argmax())}
    assert len(set(tokens[~is_greedy].tolist())) > 3
    exact = torch.log_softmax(logits.double(), -1).gather(1, tokens[:, None].long()).squeeze(1)
    assert torch.allclose(logprobs.double(), exact, atol=2e-6)


@pytest.mark.parametrize("share", [0.0, 0.5, ALMOST_ONE, 1.0])
def test_impossible_words_are_never_drawn(share: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, share, dtype=torch.float64))
    logits = torch.full((3, 2 * BLOCK + 9), -math.inf)
    logits[0, 300], logits[1, 0], logits[2, -1] = 1.0, -50.0, 20.0
    tokens, logprobs = sample(logits, torch.ones(3, 1))
    assert tokens.tolist() == [300, 0, 2 * BLOCK + 8]
    assert logprobs.tolist() == [0.0, 0.0, 0.0]


def test_slices_change_no_log_prob(monkeypatch: pytest.MonkeyPatch):
    logits = random_logits(7, 40)
    torch.manual_seed(0)
    whole = sample(logits.clone(), torch.ones(7, 1))
    monkeypatch.setattr(inverse_transform, "LOGITS_AT_ONCE", 80)
    torch.manual_seed(0)
    sliced = sample(logits.clone(), torch.ones(7, 1))
    assert all(map(torch.equal, whole, sliced))
