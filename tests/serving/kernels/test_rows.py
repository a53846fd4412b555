"""No row's result depends on other rows, on their number, or on the row's place."""

import pytest
import torch
from torch.nn import functional

from asyncrl.serving.kernels import rows as kernels

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
