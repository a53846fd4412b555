"""RMSNorm in 16 bits on a CPU is rounded once, whatever the slices."""

import pytest
import torch
from torch import Tensor

from asyncrl.trainer.network import norm
from asyncrl.trainer.network.norm import rms_norm


def run(function, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of tokens and weight."""
    tokens, weight, gradient = (x.detach() for x in inputs)
    tokens, weight = tokens.requires_grad_(), weight.requires_grad_()
    output = function(tokens, weight)
    return [output.detach(), *torch.autograd.grad(output, (tokens, weight), gradient)]


@pytest.fixture
def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(17, 1, 24), (24,), (17, 1, 24)]
    return [(3 * torch.randn(*shape, generator=generator)).bfloat16() for shape in shapes]


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_values_and_gradients_are_rounded_once(inputs: list[Tensor], dtype: torch.dtype, unit: float):
    inputs = [x.to(dtype) for x in inputs]
    exact = run(lambda x, w: torch.nn.functional.rms_norm(x, (24,), w, 1e-5), [x.double() for x in inputs])
    for found, expected in zip(run(lambda x, w: rms_norm(x, w, 1e-5), inputs), exact, strict=True):
        # Half a unit in the last of 8 or 11 bits, and the rounding of float32 before it.
        assert found.dtype is dtype
        assert ((found.double() - expected).abs() <= unit * expected.abs() + 1e-5).all()


def test_slices_change_no_value(inputs: list[Tensor], monkeypatch: pytest.MonkeyPatch):
    whole = run(lambda x, w: rms_norm(x, w, 1e-5), inputs)
    monkeypatch.setattr(norm, "NUMBERS_AT_ONCE", 48)
    sliced = run(lambda x, w: rms_norm(x, w, 1e-5), inputs)
    assert all(map(torch.equal, sliced[:2], whole[:2]))
    # The weight's gradient is a sum over the slices.
    assert torch.allclose(sliced[2], whole[2], rtol=2**-8)


def test_a_vector_of_zeros_stays_zero_and_finite():
    tokens = torch.zeros(2, 8, dtype=torch.bfloat16, requires_grad=True)
    output = rms_norm(tokens, torch.ones(8, dtype=torch.bfloat16), 1e-5)
    output.sum().backward()
    assert output.eq(0).all() and tokens.grad.isfinite().all()
