"""The output layer's gradient, added to Megatron's own as on a GPU: by adding products on a CPU."""

import pytest
import torch
from torch import Tensor

import asyncrl.trainer.network.logprobs as logprobs_module
from asyncrl.trainer.network import output_kernels
from asyncrl.trainer.network.logprobs import output_logprobs


def leaves(dtype: torch.dtype) -> tuple[Tensor, torch.nn.Parameter, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 6, generator=generator).to(dtype).requires_grad_()
    weight = torch.nn.Parameter(torch.randn(19, 6, generator=generator).to(dtype))
    return hidden, weight, torch.randint(0, 17, (11,), generator=generator)


def with_main_gradient(weight: torch.nn.Parameter) -> Tensor:
    """As Megatron's DistributedDataParallel makes it, with something in it from an earlier micro-batch."""
    weight.main_grad = torch.full((19, 6), 0.5)
    weight.grad_added_to_main_grad = False
    return weight.main_grad


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 40)


@pytest.mark.parametrize("logits_at_once", [40, 2**26])
def test_products_are_added_to_the_gradient_of_earlier_micro_batches(
    logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", logits_at_once)
    hidden, weight, targets = leaves(torch.bfloat16)
    values = output_logprobs(hidden, weight, targets, 0.7, vocab_size=17)
    wanted_hidden, wanted = torch.autograd.grad(values[0].sum(), (hidden, weight))
    main = with_main_gradient(weight)
    monkeypatch.setattr(output_kernels, "ADDING", ("cpu",))
    output_logprobs(hidden, weight, targets, 0.7, vocab_size=17)[0].sum().backward()
    assert weight.grad_added_to_main_grad
    assert (main[:17] - 0.5 - wanted[:17].float()).abs().max() < 0.02 * wanted.abs().max()
    # Padding of the vocabulary keeps what it had.
    assert main[17:].eq(0.5).all()
    assert torch.equal(hidden.grad, wanted_hidden)
    # Megatron leaves the stand-in unread.
    assert weight.grad is not None and weight.grad.shape == weight.shape


def test_a_tied_weight_gets_a_stand_in_of_zeros_which_megatron_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_kernels, "ADDING", ("cpu",))
    hidden, weight, targets = leaves(torch.float32)
    with_main_gradient(weight)
    weight.zero_out_wgrad = True
    output_logprobs(hidden, weight, targets, 1.0, vocab_size=19)[0].sum().backward()
    assert weight.grad.eq(0).all()


def test_on_a_cpu_and_without_megatrons_gradient_autograd_gets_it() -> None:
    hidden, weight, targets = leaves(torch.float32)
    main = with_main_gradient(weight)
    output_logprobs(hidden, weight, targets, 1.0, vocab_size=17)[0].sum().backward()
    assert main.eq(0.5).all() and not weight.grad_added_to_main_grad and weight.grad.ne(0).any()
