"""Rotary positions are Megatron's to the last bit, in values and gradients."""

import pytest
import torch
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd

from asyncrl.trainer.packing.rotary import rotate, turns_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_are_those_of_megatron(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    # Heads as they leave the product of queries, keys and values: parts of longer rows.
    rows, gradient = (torch.randn(50, 3, 100, generator=generator).to(dtype) for _ in range(2))
    heads, gradient = rows[..., 10:42].requires_grad_(), gradient[..., 20:52]
    angles = 40 * torch.rand(50, 1, 1, 16, generator=generator).repeat(1, 1, 1, 2)
    expected = _apply_rotary_pos_emb_bshd(heads[:, None], angles)[:, 0]
    found = rotate(heads, turns_of(angles))
    assert torch.equal(found, expected)
    (own,), (other,) = (torch.autograd.grad(each, heads, gradient) for each in (found, expected))
    assert torch.equal(own, other)
