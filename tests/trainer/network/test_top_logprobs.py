"""Means of log-probs over a teacher's likeliest tokens, against the formulas, in chunks and slices."""

import math

import pytest
import torch
from torch import Tensor

import asyncrl.trainer.network.logprobs as logprobs_module
from asyncrl.trainer.network.logprobs import output_logprobs
from asyncrl.trainer.packing.terms import KeptSets, TopTokens

UNSAMPLED = torch.tensor([17])


def problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, TopTokens]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(11, 6, generator=generator, requires_grad=True)
    weight = torch.randn(19, 6, generator=generator, requires_grad=True)
    teacher = torch.log_softmax(2 * torch.randn(11, 19, generator=generator), -1)
    logprobs, tokens = teacher.topk(4, -1)
    logprobs[tokens == 17] = -math.inf
    return hidden, weight, torch.arange(11), TopTokens(tokens, logprobs.exp(), logprobs)


def reference(
    hidden, weight, targets, temperature, top: TopTokens, cap: float | None = None
) -> tuple[Tensor, ...]:
    """(log-probs, entropies, means) by the formulas, in double precision."""
    logits = hidden.double() @ weight.double().t()
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    logits = (logits / temperature).index_fill(1, UNSAMPLED, -1e30)
    logprobs = torch.log_softmax(logits, -1)
    means = (top.logprobs.double().exp() * logprobs.gather(1, top.tokens)).sum(-1)
    return logprobs[torch.arange(11), targets], -(logprobs.exp() * logprobs).sum(-1), means


@pytest.mark.parametrize("sizes", [(2**26, 2**18), (7, 2**18), (100, 40)], ids=["whole", "chunks", "slices"])
@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (0.7, None), (0.7, 1.5)])
def test_values_and_gradients_are_those_of_the_formulas_in_chunks_and_slices(
    sizes: tuple[int, int], temperature: float, cap: float | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", sizes[0])
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", sizes[1])
    hidden, weight, targets, top = problem()
    given = {"unsampled": UNSAMPLED, "terms": [top], "cap": cap}
    got = output_logprobs(hidden, weight, targets, temperature, vocab_size=19, **given)
    wanted = reference(hidden, weight, targets, temperature, top, cap)
    directions = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    # All together, the mean alone, and log-probs without it.
    for chosen in ([0, 1, 2], [2], [0]):
        slopes, expected = (
            torch.autograd.grad(
                [values[i] for i in chosen],
                (hidden, weight),
                [directions[i].to(values[0].dtype) for i in chosen],
                retain_graph=True,
            )
            for values in (got, wanted)
        )
        for left, right in zip((*got, *slopes), (*wanted, *expected), strict=True):
            assert (left - right).abs().max() < 1e-5


def test_log_probs_and_entropies_are_to_the_bit_what_they_are_without_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 40)
    hidden, weight, targets, top = problem()
    plain = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19)
    beside = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, terms=[top])
    assert len(plain) == 2 and all(map(torch.equal, plain, beside[:2]))


def test_kept_sets_may_be_beside_it(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, targets, top = problem()
    kept = KeptSets.of(torch.arange(11), targets, 11)
    found = []
    for at_once in (2**26, 40):
        monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", at_once)
        values = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, terms=[kept, top])
        slopes = torch.autograd.grad((values[2] + 2 * values[3]).sum(), (hidden, weight))
        found.append([*values, *slopes])
    assert all((left - right).abs().max() < 1e-5 for left, right in zip(*found, strict=True))


def test_bfloat16_logits_that_are_kept_or_computed_again_give_the_same(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, targets, top = problem()
    hidden, weight = (each.detach().bfloat16().requires_grad_() for each in (hidden, weight))

    def run() -> list[Tensor]:
        values = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, terms=[top])
        return [*values, *torch.autograd.grad(values[2].sum() + values[1].sum(), (hidden, weight))]

    stored = run()
    monkeypatch.setattr(logprobs_module, "KEPT_BYTES", 0)
    assert all(map(torch.equal, run(), stored))
