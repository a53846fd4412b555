"""Terms of log-probs, kept sets and likeliest tokens, against the formulas, numeric gradients and in
chunks."""

import math

import pytest
import torch
from torch import Tensor

import asyncrl.trainer.network.logprobs as logprobs_module
from asyncrl.trainer.network.logprobs import output_logprobs
from asyncrl.trainer.network.output_kernels import token_logprobs
from asyncrl.trainer.packing.terms import KeptSets, TopTokens


def kept_sets(*sets: list[int]) -> KeptSets:
    rows = [row for row, ids in enumerate(sets) for _ in ids]
    return KeptSets.of(torch.tensor(rows), torch.tensor([each for ids in sets for each in ids]), len(sets))


def over_kept(values: tuple[Tensor, ...]) -> Tensor:
    whole, _, log_masses = values
    return whole - log_masses


def test_the_ratio_of_a_token_is_that_of_the_distributions_over_its_kept_set():
    # Top-p .9 of .5 .3 .15 .05 keeps three; the second is sampled, and the policy moves to .45 .35 .1 .1.
    kept = kept_sets([0, 1, 2])
    before, after = torch.tensor([[0.5, 0.3, 0.15, 0.05]]), torch.tensor([[0.45, 0.35, 0.1, 0.1]])
    m = over_kept(token_logprobs(before.log(), torch.tensor([1]), 1.0, terms=[kept]))
    p = over_kept(token_logprobs(after.log(), torch.tensor([1]), 1.0, terms=[kept]))
    assert m.exp().item() == pytest.approx(0.315789, abs=1e-6)
    assert (p - m).exp().item() == pytest.approx(1.231481, abs=1e-6)
    unreplayed = token_logprobs(before.log(), torch.tensor([1]), 1.0)[0]
    assert (unreplayed - m).exp().item() == pytest.approx(0.95, abs=1e-6)


def reference(hidden, weight, targets, temperature, kept: KeptSets, unsampled=None) -> tuple[Tensor, ...]:
    """(log-probs over all, entropies, logs of the kept probability) by the formulas, in double precision."""
    logits = hidden.double() @ weight.double().t() / temperature
    if unsampled is not None:
        logits = logits.index_fill(1, unsampled, -1e30)
    logprobs = torch.log_softmax(logits, -1)
    is_kept = torch.zeros_like(logits, dtype=torch.bool)
    is_kept[kept.rows, kept.tokens] = True
    masses = torch.where(is_kept, logprobs, -math.inf).logsumexp(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs[torch.arange(len(targets)), targets], entropies, masses


def problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, KeptSets]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(11, 6, generator=generator)
    weight = torch.randn(19, 6, generator=generator)
    sets = [torch.randperm(17, generator=generator)[: 1 + row].tolist() for row in range(11)]
    return (
        hidden.requires_grad_(),
        weight.requires_grad_(),
        torch.tensor([ids[0] for ids in sets]),
        kept_sets(*sets),
    )


@pytest.mark.parametrize("logits_at_once", [2**26, 7, 40, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("slice_logits", [2**18, 40])
def test_values_and_gradients_are_those_of_the_formulas_in_chunks_and_slices(
    logits_at_once: int, temperature: float, slice_logits: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", logits_at_once)
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", slice_logits)
    hidden, weight, targets, kept = problem()
    unsampled = torch.tensor([17])
    got = output_logprobs(
        hidden, weight, targets, temperature, vocab_size=19, unsampled=unsampled, terms=[kept]
    )
    wanted = reference(hidden, weight, targets, temperature, kept, unsampled)
    directions = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    slopes, expected = (
        torch.autograd.grad(values, (hidden, weight), tuple(directions.to(values[0].dtype)))
        for values in (got, wanted)
    )
    for left, right in zip((*got, *slopes), (*wanted, *expected), strict=True):
        assert (left - right).abs().max() < 1e-5
    # A token that had no other choice has no gradient.
    again = output_logprobs(hidden, weight, targets, temperature, vocab_size=19, terms=[kept])
    (alone,) = torch.autograd.grad(over_kept(again)[0], hidden)
    assert over_kept(got)[0].abs() < 1e-6 and alone.abs().max() < 1e-6


def test_the_gradient_is_the_numeric_one():
    hidden, weight, targets, kept = problem(3)
    logits = (hidden.detach() @ weight.detach().t()).requires_grad_()
    found = over_kept(token_logprobs(logits, targets, 0.8, terms=[kept]))
    (slopes,) = torch.autograd.grad(found.sum(), logits)

    def value(moved: Tensor) -> float:
        logprobs = torch.log_softmax(moved.double() / 0.8, -1)
        total = 0.0
        for row, target in enumerate(targets.tolist()):
            ids = kept.tokens[kept.rows == row]
            total += (logprobs[row, target] - logprobs[row, ids].logsumexp(0)).item()
        return total

    step = 1e-4
    for row, column in [(0, 3), (4, 2), (10, int(targets[10])), (10, 18), (7, int(targets[7]))]:
        moved = [logits.detach().double().clone() for _ in range(2)]
        moved[0][row, column] += step
        moved[1][row, column] -= step
        assert slopes[row, column].item() == pytest.approx(
            (value(moved[0]) - value(moved[1])) / (2 * step), abs=1e-6
        )


UNSAMPLED = torch.tensor([17])


def top_problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, TopTokens]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(11, 6, generator=generator, requires_grad=True)
    weight = torch.randn(19, 6, generator=generator, requires_grad=True)
    teacher = torch.log_softmax(2 * torch.randn(11, 19, generator=generator), -1)
    logprobs, tokens = teacher.topk(4, -1)
    logprobs[tokens == 17] = -math.inf
    return hidden, weight, torch.arange(11), TopTokens(tokens, logprobs.exp(), logprobs)


def by_formula(
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
def test_means_and_their_gradients_are_those_of_the_formulas_in_chunks_and_slices(
    sizes: tuple[int, int], temperature: float, cap: float | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", sizes[0])
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", sizes[1])
    hidden, weight, targets, top = top_problem()
    given = {"unsampled": UNSAMPLED, "terms": [top], "cap": cap}
    got = output_logprobs(hidden, weight, targets, temperature, vocab_size=19, **given)
    wanted = by_formula(hidden, weight, targets, temperature, top, cap)
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
    hidden, weight, targets, top = top_problem()
    plain = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19)
    beside = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, terms=[top])
    assert len(plain) == 2 and all(map(torch.equal, plain, beside[:2]))


def test_kept_sets_may_be_beside_it(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, targets, top = top_problem()
    kept = KeptSets.of(torch.arange(11), targets, 11)
    found = []
    for at_once in (2**26, 40):
        monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", at_once)
        values = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, terms=[kept, top])
        slopes = torch.autograd.grad((values[2] + 2 * values[3]).sum(), (hidden, weight))
        found.append([*values, *slopes])
    assert all((left - right).abs().max() < 1e-5 for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("make", [problem, top_problem], ids=["kept", "likeliest"])
def test_bfloat16_logits_that_are_kept_or_computed_again_give_the_same(make, monkeypatch: pytest.MonkeyPatch):
    hidden, weight, targets, term = make()
    hidden, weight = (each.detach().bfloat16().requires_grad_() for each in (hidden, weight))

    def run() -> list[Tensor]:
        values = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, terms=[term])
        return [
            *values,
            *torch.autograd.grad(values[0].sum() - values[2].sum() + values[1].sum(), (hidden, weight)),
        ]

    stored = run()
    monkeypatch.setattr(logprobs_module, "KEPT_BYTES", 0)
    assert all(map(torch.equal, run(), stored))
    logits = torch.nn.functional.linear(hidden, weight)
    exact = token_logprobs(logits.double(), targets, 0.7, terms=[term])
    assert all((left - right).abs().max() < 1e-5 for left, right in zip(stored, exact, strict=False))
