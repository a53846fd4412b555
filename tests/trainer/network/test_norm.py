"""RMSNorm on a CPU: in 16 bits it is rounded once, in float32 it is torch's, whatever the slices."""

import pytest
import torch
from torch import Tensor

from asyncrl.trainer.network import norms
from asyncrl.trainer.network.norms import rms_norm


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
    monkeypatch.setattr(norms, "NUMBERS_AT_ONCE", 48)
    sliced = run(lambda x, w: rms_norm(x, w, 1e-5), inputs)
    assert all(map(torch.equal, sliced[:2], whole[:2]))
    # The weight's gradient is a sum over the slices.
    assert torch.allclose(sliced[2], whole[2], rtol=2**-8)


def test_a_vector_of_zeros_stays_zero_and_finite():
    tokens = torch.zeros(2, 8, dtype=torch.bfloat16, requires_grad=True)
    output = rms_norm(tokens, torch.ones(8, dtype=torch.bfloat16), 1e-5)
    output.sum().backward()
    assert output.eq(0).all() and tokens.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(17, 1, 24), (700, 1, 4, 32), (2000, 1, 128), (1, 1, 8), (0, 1, 16)])
def test_in_float32_values_and_gradients_are_those_of_torch_to_the_last_bit(shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(1)
    inputs = [3 * torch.randn(*each, generator=generator) for each in (shape, shape[-1:], shape)]

    def residual(norm):
        # Its gradient is a sum of three.
        return lambda x, w: x + norm(x, w)

    def plain(x, w):
        return torch.nn.functional.rms_norm(x, shape[-1:], w, 1e-6)

    for ours, torchs in ((own_norm, plain), (residual(own_norm), residual(plain))):
        assert all(map(torch.equal, run(ours, inputs), run(torchs, inputs)))


def own_norm(x: Tensor, w: Tensor) -> Tensor:
    return rms_norm(x, w, 1e-6)
