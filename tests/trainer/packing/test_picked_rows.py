"""Rows picked by place, and the gradients of those picked more than once."""

import torch

from asyncrl.trainer.packing.attention import pick_rows


def test_values_and_gradients_are_those_of_index_select() -> None:
    rows = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    places = torch.tensor([4, 0, 4, 2, 4])
    weights = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(1))
    picked, expected = pick_rows(rows, places), rows.index_select(0, places)
    assert torch.equal(picked, expected)
    (got,) = torch.autograd.grad(picked, rows, weights)
    (wanted,) = torch.autograd.grad(expected, rows, weights)
    torch.testing.assert_close(got, wanted)
    assert torch.equal(got[1], torch.zeros(3, 2))


def test_gradients_of_a_row_picked_often_are_summed_in_float32() -> None:
    # A sum of halves in bfloat16 stays at 128, where its next number is 1 away.
    rows = torch.zeros(2, 8, dtype=torch.bfloat16, requires_grad=True)
    picked = pick_rows(rows, torch.zeros(300, dtype=torch.int64))
    picked.backward(torch.full((300, 8), 0.5, dtype=torch.bfloat16))
    assert rows.grad.dtype is torch.bfloat16
    assert rows.grad.tolist() == [[150.0] * 8, [0.0] * 8]
