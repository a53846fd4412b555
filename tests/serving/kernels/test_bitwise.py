"""No row's result depends on other rows, on their number, or on the row's place."""

import pytest
import torch
from torch.nn import functional

from asyncrl.serving.kernels import bitwise as kernels
from asyncrl.serving.kernels.bitwise import KEYS, Attention

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


FUNCTIONS = {
    "linear": lambda rows: kernels.linear(
        rows, random(200, 96, dtype=rows.dtype), random(200, dtype=rows.dtype)
    ),
    "norm": lambda rows: kernels.norm(rows, random(96, dtype=rows.dtype), 1e-6),
    # Of an odd width: a register's worth is never left over.
    "silu": lambda rows: kernels.silu(rows[:, :61]),
    "token_logprobs": lambda rows: kernels.token_logprobs(
        3 * rows, torch.full((len(rows), 1), 0.7), torch.full((len(rows),), 5)
    ),
}


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_same_result_alone_and_in_any_batch(name: str, dtype: torch.dtype):
    function, rows = FUNCTIONS[name], random(150, 96, dtype=dtype)
    whole = function(rows)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    assert torch.equal(function(rows[order]), whole[order])
    for first, last in ((0, 1), (3, 20), (50, 150)):
        assert torch.equal(function(rows[first:last]), whole[first:last])


@DTYPES
def test_the_results_are_those_of_torch(dtype: torch.dtype):
    rows, weight = random(70, 96, dtype=dtype), random(40, 96, dtype=dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for found, wanted in (
        (kernels.linear(rows, weight), functional.linear(rows, weight)),
        (kernels.norm(rows, weight[0], 1e-6), functional.rms_norm(rows, (96,), weight[0], 1e-6)),
        (kernels.silu(rows), functional.silu(rows)),
    ):
        assert found.dtype is dtype
        assert (found - wanted).norm() <= tolerance * wanted.norm()


def test_no_rows_have_no_results():
    assert kernels.linear(random(0, 96), random(40, 96)).shape == (0, 40)


HEADS, KV_HEADS, SIZE, LENGTH = 6, 2, 16, 3 * KEYS + 7


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
    monkeypatch.setattr("asyncrl.serving.kernels.bitwise.SCORES_AT_ONCE", 5000)
    assert torch.equal(attend(queries, keys, values, seen), whole)
