"""Packed weights: the numbers of torch's own product, of the weight as it is now."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from asyncrl.serving.engine.cpu import packed_weights
from asyncrl.serving.engine.cpu.packed_weights import PAYS_AFTER, PackedWeight, can_pack, packed

OUTPUTS, INPUTS, ROWS = 192, 128, 64
"""Rows x weight are more than packed_weights.MANY_NUMBERS."""


def random_weight(dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_rows(dtype: torch.dtype, num_rows: int = ROWS) -> Tensor:
    return torch.randn(num_rows, INPUTS, generator=torch.Generator().manual_seed(9)).to(dtype)


def warm(weight: PackedWeight, rows: Tensor) -> None:
    for _ in range(PAYS_AFTER):
        weight.product(rows)


def assert_same(product: Tensor, expected: Tensor) -> None:
    assert product.dtype == expected.dtype and product.shape == expected.shape
    # Sums of 128 numbers in another order; bfloat16 then rounds to 1 of 256.
    relative = 1e-2 if product.dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(product.float(), expected.float(), rtol=relative, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 50, ROWS, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_the_weight_before_and_after_it_is_packed(
    dtype: torch.dtype, num_rows: int, has_bias: bool
):
    if not can_pack(random_weight(dtype)):
        assert packed(random_weight(dtype)) is None
        pytest.skip(f"oneDNN has no products of {dtype} on this CPU")
    weight = PackedWeight(random_weight(dtype))
    bias = torch.arange(OUTPUTS).to(dtype) / OUTPUTS if has_bias else None
    rows = random_rows(dtype, num_rows)
    expected = linear(rows, random_weight(dtype), bias)
    assert_same(weight.product(rows, bias), expected)
    warm(weight, random_rows(dtype))
    assert_same(weight.product(random_rows(dtype)), linear(random_rows(dtype), random_weight(dtype)))
    assert weight.is_packed
    assert_same(weight.product(rows, bias), expected)


def test_a_weight_written_in_place_is_packed_again_after_forget():
    kept = random_weight(torch.float32)
    weight, rows = PackedWeight(kept), random_rows(torch.float32)
    warm(weight, rows)
    weight.product(rows)
    assert weight.is_packed
    kept.copy_(random_weight(torch.float32, seed=1))
    packed_weights.forget()
    # At once: the copy is as large as the weight, and a sleeping server may hold neither.
    assert not weight.is_packed
    expected = linear(rows, random_weight(torch.float32, seed=1))
    assert_same(weight.product(rows), expected)
    assert not weight.is_packed
    warm(weight, rows)
    assert weight.is_packed
    assert_same(weight.product(rows), expected)


def test_a_weight_whose_storage_is_replaced_is_read_from_the_new_one():
    parameter = torch.nn.Parameter(random_weight(torch.float32), requires_grad=False)
    weight, rows = packed(parameter), random_rows(torch.float32)
    assert weight is not None and packed(parameter) is weight
    warm(weight, rows)
    weight.product(rows)
    parameter.data = random_weight(torch.float32, seed=1)
    packed_weights.forget()
    for _ in range(PAYS_AFTER + 2):
        assert_same(weight.product(rows), linear(rows, random_weight(torch.float32, seed=1)))


def test_few_products_of_one_version_pack_nothing():
    weight = PackedWeight(random_weight(torch.float32))
    warm(weight, random_rows(torch.float32))
    assert not weight.is_packed


def test_small_products_pack_nothing():
    weight, row = PackedWeight(random_weight(torch.float32)), random_rows(torch.float32, 1)
    for _ in range(2 * PAYS_AFTER):
        weight.product(row)
    assert not weight.is_packed


@pytest.mark.parametrize(
    "weight",
    [torch.zeros(8, 8, dtype=torch.float16), torch.zeros(8, 8, dtype=torch.int8), torch.zeros(2, 8, 8)],
)
def test_other_weights_are_left_alone(weight: Tensor):
    assert packed(weight) is None
