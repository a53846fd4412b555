"""Attention in 16 bits on a CPU: its outputs and gradients are those of exact arithmetic, to 16 bits."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from asyncrl.trainer.packing import cpu_attention
from asyncrl.trainer.packing.cpu_attention import attend, is_for


def make_inputs(batch: int, heads: int, kv_heads: int, length: int, size: int) -> list[Tensor]:
    """Query, key, value, and the gradient of the output, in the layout that the packs have."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, length, count, size, generator=generator).bfloat16().transpose(1, 2)
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def run(function, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of query, key and value."""
    *leaves, gradient = (x.detach() for x in inputs)
    leaves = [x.requires_grad_() for x in leaves]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]


def random_mask(batch: int, length: int) -> Tensor:
    """[B, L, L]: each place looks at itself and at some before it."""
    generator = torch.Generator().manual_seed(1)
    looks = torch.rand(batch, length, length, generator=generator) < 0.5
    return (looks | torch.eye(length, dtype=torch.bool)).tril()


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (4, 1)])
@pytest.mark.parametrize("length", [3, 33])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
def test_outputs_and_gradients_are_those_of_exact_arithmetic(
    heads: tuple[int, int], length: int, dtype: torch.dtype, limit: float
):
    inputs = [x.to(dtype) for x in make_inputs(3, *heads, length, 16)]
    exact = run(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        [x.double() for x in inputs],
    )
    for found, expected in zip(run(lambda *x: attend(*x, None), inputs), exact, strict=True):
        # Half a unit in the last of bfloat16's 8 bits is 2e-3 of a value; a few of them add up.
        assert found.dtype is dtype
        assert (found.double() - expected).norm() <= limit * expected.norm()


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (4, 1)])
def test_a_place_looks_where_the_mask_says(heads: tuple[int, int]):
    inputs, mask = make_inputs(3, *heads, 20, 16), random_mask(3, 20)
    exact = run(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], enable_gqa=True),
        [x.double() for x in inputs],
    )
    for found, expected in zip(run(lambda *x: attend(*x, None, mask), inputs), exact, strict=True):
        assert (found.double() - expected).norm() <= 8e-3 * expected.norm()


@pytest.mark.parametrize("mask", [None, "random"])
def test_slices_change_nothing(mask: str | None, monkeypatch: pytest.MonkeyPatch):
    inputs, looks = make_inputs(5, 4, 2, 20, 16), random_mask(5, 20) if mask else None
    whole = run(lambda *x: attend(*x, 0.3, looks), inputs)
    monkeypatch.setattr(cpu_attention, "SCORES_AT_ONCE", 1)
    assert all(map(torch.equal, run(lambda *x: attend(*x, 0.3, looks), inputs), whole))


def test_no_place_sees_a_later_one():
    query, key, value, _ = make_inputs(2, 2, 1, 12, 16)
    before = attend(query, key, value, None)
    key[:, :, 8:], value[:, :, 8:] = 5.0, 7.0
    after = attend(query, key, value, None)
    assert torch.equal(before[:, :, :8], after[:, :, :8])
    assert not torch.equal(before[:, :, 8:], after[:, :, 8:])


def test_long_sequences_and_float32_are_torchs():
    query, *_ = make_inputs(1, 2, 1, cpu_attention.LONGEST, 16)
    assert is_for(query)
    assert not is_for(query.float())
    assert not is_for(torch.cat([query, query], 2))
