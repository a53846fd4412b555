"""Sampled tokens follow softmax(logits / temperature), and their log-probs are those of that distribution, on
a real server too."""

import asyncio
import math
from typing import Any

import pytest
import torch
from serving.engine.servers import new_session, post
from torch import Tensor

from asyncrl.serving.engine.cpu import sampler
from asyncrl.serving.engine.cpu.sampler import ALMOST_ONE, BLOCK, sample


async def generate_in_turn(url: str, *bodies: dict[str, Any]) -> list[Any]:
    async with new_session() as session:
        return [await post(session, f"{url}/generate", body) for body in bodies]


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_a_batch_without_log_probs_is_sampled_and_the_server_lives_on(shared_engine):
    url, _ = shared_engine
    # When the shorter one ends the batch is filtered, and its lists of log-probs are None from then on.
    parameters = [{"temperature": 1.0, "max_new_tokens": n, "ignore_eos": True} for n in (2, 9)]
    body = {"input_ids": [[5, 6, 7], [8, 9]], "sampling_params": parameters}
    without, with_them = asyncio.run(generate_in_turn(url, body, body | {"return_logprob": True}))
    assert [len(reply["output_ids"]) for reply in without] == [2, 9]
    assert all("output_token_logprobs" not in reply["meta_info"] for reply in without)
    assert [len(reply["meta_info"]["output_token_logprobs"]) for reply in with_them] == [2, 9]


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_greedy_requests_answer_the_same_alone_and_among_sampled_ones(shared_engine):
    url, _ = shared_engine
    greedy = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
    alone = {"input_ids": [[5, 6, 7]], "sampling_params": [greedy], "return_logprob": True}
    sampled = {"temperature": 1.0, "max_new_tokens": 9, "ignore_eos": True}
    mixed = {
        "input_ids": [[8, 9], [5, 6, 7], [8, 9]],
        "sampling_params": [sampled, greedy, sampled],
        "return_logprob": True,
    }
    (first,), (_, second, _) = asyncio.run(generate_in_turn(url, alone, mixed))
    assert second["output_ids"] == first["output_ids"]
    logprobs = [
        [value for value, *_ in reply["meta_info"]["output_token_logprobs"]] for reply in (first, second)
    ]
    assert logprobs[1] == pytest.approx(logprobs[0], abs=1e-4)


@pytest.mark.parametrize("name", ["greedy", "top_k", "top_p", "min_p"])
def test_sglang_samples_only_while_a_request_that_cuts_words_runs(compared, name: str):
    samplers = dict(compared["compare_sampler"])
    expected = "ours" if name == "greedy" else "theirs"
    assert (samplers[name], samplers[f"among_{name}"]) == (expected, expected)
    assert samplers["plain"] == samplers[f"after_{name}"] == "ours"


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
    monkeypatch.setattr(sampler, "LOGITS_AT_ONCE", 80)
    torch.manual_seed(0)
    sliced = sample(logits.clone(), torch.ones(7, 1))
    assert all(map(torch.equal, whole, sliced))
