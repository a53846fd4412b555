import math

import pytest
import torch
from torch import Tensor

import asyncrl.trainer.network.logprobs as logprobs_module
from asyncrl.trainer.network.logprobs import output_logprobs
from asyncrl.trainer.network.output_kernels import token_logprobs


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


def reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, unsampled: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """By the formulas, in double precision."""
    logits = hidden.double() @ weight.double().t() / temperature
    if unsampled is not None:
        logits = logits.index_fill(1, unsampled, -math.inf)
    logprobs = torch.log_softmax(logits, -1)
    terms = torch.where(logprobs.isfinite(), logprobs.exp() * logprobs.nan_to_num(neginf=0.0), 0.0)
    return logprobs[torch.arange(len(targets)), targets], -terms.sum(-1)


def assert_same(
    got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], leaves: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """In values and gradients; the gradients."""
    directions = torch.randn(2, len(got[0]), generator=torch.Generator().manual_seed(1))
    slopes, expected = (
        torch.autograd.grad(values, leaves, tuple(directions.to(values[0].dtype))) for values in (got, wanted)
    )
    for left, right in zip((*got, *slopes), (*wanted, *expected), strict=True):
        assert (left - right).abs().max() < 1e-5
    return slopes


@pytest.mark.parametrize("logits_at_once", [2**26, 7, 40, 100])
def test_chunks_give_the_values_and_gradients_of_the_whole(
    logits_at_once: int, monkeypatch: pytest.MonkeyPatch
):
    # 11 tokens of 19 words: at once, or 1, 2 or 5 tokens at a time
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", logits_at_once)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 6, generator=generator, requires_grad=True)
    weight = torch.randn(19, 6, generator=generator, requires_grad=True)
    targets = torch.randint(0, 19, (11,), generator=generator)
    got = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19)
    wanted = reference(hidden, weight, targets, 0.7)
    assert_same(got, wanted, (hidden, weight))


def test_padding_of_the_vocabulary_is_no_part_of_the_softmax():
    weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([0, 4, 2])
    got = output_logprobs(hidden, weight, targets, 1.0, vocab_size=5)
    wanted = reference(hidden, weight[:5], targets, 1.0)
    assert all((left - right).abs().max() < 1e-6 for left, right in zip(got, wanted, strict=True))
    got[0].sum().backward()
    assert weight.grad[5:].eq(0).all() and weight.grad[:5].ne(0).all()


def test_a_chunk_without_tokens_has_gradients_of_zero():
    weight = torch.randn(8, 4, requires_grad=True)
    hidden = torch.zeros(0, 4, requires_grad=True)
    logprobs, _ = output_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64), 1.0, vocab_size=5)
    logprobs.sum().backward()
    assert logprobs.shape == (0,) and weight.grad.eq(0).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_bfloat16_logits_that_are_kept_sliced_or_computed_again_give_the_same(
    temperature: float, monkeypatch: pytest.MonkeyPatch
):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 16, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(19, 16, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(0, 19, (11,), generator=generator)

    def run() -> list[Tensor]:
        values = output_logprobs(hidden, weight, targets, temperature, vocab_size=19)
        assert {value.dtype for value in values} == {torch.float32}
        return [*values, *torch.autograd.grad(values[0].sum() + values[1].sum(), (hidden, weight))]

    kept = run()
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", 40)
    sliced = run()
    monkeypatch.setattr(logprobs_module, "KEPT_BYTES", 0)
    assert all(map(torch.equal, sliced, kept)) and all(map(torch.equal, run(), kept))
    logits = torch.nn.functional.linear(hidden, weight)
    for found, exact in zip(kept, token_logprobs(logits.double(), targets, temperature), strict=False):
        assert (found - exact).abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_float32_logits_of_bfloat16_states_are_not_rounded(
    temperature: float, monkeypatch: pytest.MonkeyPatch
):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 64, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(19, 64, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(0, 19, (11,), generator=generator)
    exact = reference(hidden, weight, targets, temperature)
    slopes = torch.autograd.grad(exact[0].sum() + exact[1].sum(), (hidden, weight))

    def run(*, float32_logits: bool) -> list[Tensor]:
        values = output_logprobs(
            hidden, weight, targets, temperature, vocab_size=19, float32_logits=float32_logits
        )
        return [*values, *torch.autograd.grad(values[0].sum() + values[1].sum(), (hidden, weight))]

    found = run(float32_logits=True)
    for got, wanted in zip(found, exact, strict=False):
        assert got.dtype is torch.float32 and (got - wanted).abs().max() < 1e-5
    for got, wanted in zip(found[2:], slopes, strict=True):
        # Rounded once, on its way to the weights.
        assert got.dtype is torch.bfloat16 and (got - wanted).abs().max() < 0.02 * wanted.abs().max()
    rounded = run(float32_logits=False)
    assert (rounded[0] - exact[0]).abs().max() > 1e-3
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", 40)
    monkeypatch.setattr(logprobs_module, "KEPT_BYTES", 0)
    assert all(map(torch.equal, run(float32_logits=True), found))


@pytest.mark.parametrize("logits_at_once", [2**26, 40])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocab_size", [19, 17])
def test_tokens_that_are_never_sampled_have_no_share_and_no_gradient(
    logits_at_once: int, temperature: float, vocab_size: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", logits_at_once)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 6, generator=generator, requires_grad=True)
    weight = torch.randn(19, 6, generator=generator)
    unsampled = torch.tensor([0, 5, 15, 16])
    # The likeliest by far, and one that is 0 everywhere.
    weight[5], weight[15] = 50 * torch.randn(6, generator=generator), 0.0
    weight.requires_grad_()
    targets = torch.tensor([1, 4, 6, 14, 1, 2, 3, 7, 8, 13, 14])
    got = output_logprobs(hidden, weight, targets, temperature, vocab_size=vocab_size, unsampled=unsampled)
    wanted = reference(hidden, weight[:vocab_size], targets, temperature, unsampled)
    slopes = assert_same(got, wanted, (hidden, weight))
    assert slopes[1][unsampled].eq(0).all() and slopes[1][:vocab_size].ne(0).any()


def test_bfloat16_logits_leave_out_what_is_never_sampled():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 16, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(19, 16, generator=generator).bfloat16().requires_grad_()
    targets, unsampled = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([7, 18])
    got = output_logprobs(hidden, weight, targets, 0.7, vocab_size=19, unsampled=unsampled)
    logits = torch.nn.functional.linear(hidden, weight).float().index_fill(1, unsampled, -math.inf)
    wanted = torch.log_softmax(logits / 0.7, -1)[torch.arange(5), targets]
    assert (got[0] - wanted).abs().max() < 1e-5
    (got[0].sum() + got[1].sum()).backward()
    assert weight.grad[unsampled].eq(0).all() and weight.grad.isfinite().all()


@pytest.mark.parametrize("logits_at_once", [2**26, 40])
def test_capped_logits_have_the_gradient_of_the_formula(logits_at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", logits_at_once)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (2 * torch.randn(n, 5, generator=generator) for n in (11, 19))
    targets = torch.randint(19, (11,), generator=generator)
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    got = output_logprobs(*leaves, targets, 0.7, vocab_size=19, cap=3.0)
    capped = 3.0 * torch.tanh(hidden.double() @ weight.double().t() / 3.0)
    everything = torch.log_softmax(capped / 0.7, -1)
    wanted = everything[torch.arange(11), targets], -(everything.exp() * everything).sum(-1)
    assert_same(got, wanted, leaves)
