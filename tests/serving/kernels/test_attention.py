"""A query's attention is the same to the last bit whatever is computed beside it."""

import pytest
import torch

from asyncrl.serving.kernels.attention import KEYS, Attention

HEADS, KV_HEADS, SIZE, LENGTH = 6, 2, 16, 3 * KEYS + 7


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    attention = Attention(seen, HEADS, KV_HEADS)
    # What lies behind the last key is never seen: here it would show.
    missing = attention.num_keys - keys.shape[1]
    junk = [
        torch.cat([each, torch.full_like(each[:, :1], 1e3).expand(-1, max(0, missing), -1, -1)], 1)
        for each in (keys, values)
    ]
    keys, values = (each[:, : attention.num_keys] for each in junk)
    return attention(queries, keys, values, 0.3)


def sequence(dtype: torch.dtype) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    counts = (HEADS, KV_HEADS, KV_HEADS)
    return [torch.randn(2, LENGTH, count, SIZE, generator=source).to(dtype) for count in counts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoding_and_prefills_in_chunks_find_what_the_whole_sequence_finds(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    queries, keys, values = sequence(dtype)
    seen = torch.arange(1, LENGTH + 1).expand(2, -1)
    whole = attend(queries, keys, values, seen)
    of_each = queries.float().view(2, LENGTH, KV_HEADS, -1, SIZE)
    scores = torch.einsum("blgrd,bkgd->bgrlk", of_each, keys.float()) * 0.3
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    wanted = torch.einsum("bgrlk,bkgd->blgrd", weights, values.float()).reshape(whole.shape)
    assert (whole.float() - wanted).abs().max() < (1e-5 if dtype is torch.float32 else 0.02)
    for first, last in ((0, 5), (5, 70), (70, LENGTH)):
        parts = (queries[:1, first:last], keys[:1], values[:1], seen[:1, first:last])
        assert torch.equal(attend(*parts), whole[:1, first:last])
    for place in (0, KEYS - 1, KEYS, LENGTH - 1):
        # Both sequences in one step, at different places.
        places = torch.tensor([place, LENGTH - 1 - place])
        own = queries[torch.arange(2), places][:, None]
        found = attend(own, keys, values, places[:, None] + 1)
        assert torch.equal(found[:, 0], whole[torch.arange(2), places])
    monkeypatch.setattr("asyncrl.serving.kernels.attention.SCORES_AT_ONCE", 5000)
    assert torch.equal(attend(queries, keys, values, seen), whole)
