"""Decoding attention by large products: the numbers of a float64 reference, and exact scores."""

import pytest
import torch
from torch import Tensor

from asyncrl.serving.engine.cpu.decode_attention import HEADS_AT_ONCE, attend, heads_at_once

BATCH, KEYS, SIZE = 5, 40, 16


def random_bfloat16(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def reference(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    batch, heads, each, _ = queries.shape
    by_head = keys.double().view(batch, KEYS, heads, -1).transpose(1, 2)
    scores = queries.double() @ by_head.mT * scale + mask.double()[:, None]
    values = values.double().view(batch, KEYS, heads, -1).transpose(1, 2)
    return (scores.softmax(-1) @ values).reshape(batch, heads * each, -1)


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("value_size", [SIZE, 24])
def test_it_is_attention(heads: int, each: int, value_size: int):
    queries = random_bfloat16(BATCH, heads, each, SIZE)
    keys = random_bfloat16(BATCH, KEYS, heads * SIZE)
    values = random_bfloat16(BATCH, KEYS, heads * value_size)
    # Requests of 40, 33, ... keys.
    ends = torch.arange(KEYS, 0, -7)[:BATCH]
    mask = torch.zeros(BATCH, 1, KEYS).masked_fill_(torch.arange(KEYS) >= ends[:, None, None], -torch.inf)
    attended = attend(queries, keys, values, mask, 0.3)
    assert attended.shape == (BATCH, heads * each, value_size) and attended.dtype is torch.bfloat16
    # One unit of bfloat16 below 4 is 0.016, and probabilities are rounded too.
    expected = reference(queries, keys, values, mask, 0.3)
    assert torch.allclose(attended.double(), expected, atol=0.02)


def test_large_scores_keep_their_float32_precision():
    # Two keys whose scores, 513 and 512, are one number in bfloat16: 50% each instead of 73% and 27%.
    queries = torch.ones(1, 1, 1, SIZE).bfloat16()
    keys = torch.full((1, 2, SIZE), 32.0).bfloat16()
    keys[0, 0, 0] = 33
    values = torch.tensor([[[1.0] * SIZE, [0.0] * SIZE]]).bfloat16()
    assert torch.equal(torch.bmm(queries[0], keys.mT)[0, 0].diff(), torch.zeros(1))
    attended = attend(queries, keys, values, torch.zeros(1, 1, 2), 1.0)
    assert attended[0, 0, 0].item() == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=4e-3)


@pytest.mark.parametrize(("num_heads", "together"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 1), (8, 4), (9, 3)])
def test_heads_are_taken_in_equal_groups(num_heads: int, together: int):
    assert heads_at_once(num_heads) == together <= HEADS_AT_ONCE
