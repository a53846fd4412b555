"""Packed weights: the numbers of torch's own product, of the weight as it is now; in a real server too, after
a publish."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from serving.engine.servers import (
    VOCABULARY,
    load_model,
    new_session,
    post,
    publish,
    reference_logprobs,
    said_beside_engine,
)
from torch import Tensor
from torch.nn.functional import linear

from asyncrl.serving.engine.cpu import products
from asyncrl.serving.engine.cpu.products import PAYS_AFTER, PackedWeight, can_pack, packed
from asyncrl.serving.engine.environment import CPU_PATH

NUM_REQUESTS = 16
NUM_TOKENS = 3 * PAYS_AFTER
LIST_METHODS = """
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.utils.weight_checker import WeightChecker
print(*(name for name, value in vars(WeightUpdater).items() if name[0] != "_" and callable(value)))
print(hasattr(WeightChecker, "handle"))
"""
READERS = {
    "init_weights_update_group",
    "destroy_weights_update_group",
    "receive_weights_from_distributed",
}
"""Methods of SGLang's updater that leave the weights alone."""


async def generate(url: str, *, salt: str) -> list[dict[str, Any]]:
    prompts = [random.Random(seed).choices(range(2, VOCABULARY), k=12) for seed in range(NUM_REQUESTS)]
    body = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True},
        "return_logprob": True,
        "cache_salt": salt,
    }
    async with new_session() as session:
        replies = await post(session, f"{url}/generate", body)
    return [reply | {"prompt": prompt} for reply, prompt in zip(replies, prompts, strict=True)]


async def install(url: str, folder: Path, version: int) -> None:
    async with new_session() as session:
        await publish(session, url, folder, version, has_check=True)


def assert_log_probs_are_those_of(folder: Path, replies: list[dict[str, Any]]) -> None:
    model = load_model(folder)
    for reply in replies:
        served = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        assert len(served) == NUM_TOKENS
        expected = reference_logprobs(reply["prompt"], reply["output_ids"], [model] * NUM_TOKENS)
        assert served == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_each_version_is_computed_with_its_own_weights(shared_engine):
    url, folders = shared_engine
    # Long enough that each version's weights are packed, and used so.
    assert_log_probs_are_those_of(folders[0], asyncio.run(generate(url, salt="products-0")))
    asyncio.run(install(url, folders[1], 1))
    after = asyncio.run(generate(url, salt="products-1"))
    asyncio.run(install(url, folders[0], 0))
    assert_log_probs_are_those_of(folders[1], after)
    assert_log_probs_are_those_of(folders[0], asyncio.run(generate(url, salt="products-2")))


@pytest.mark.exhaustive
def test_every_method_that_may_write_weights_is_known(tmp_path: Path) -> None:
    writers = (CPU_PATH.parent / "cpu" / "products.py").read_text()
    methods, has_handle = said_beside_engine(LIST_METHODS, tmp_path)[-2:]
    writing = {name for name in methods.split() if "weight" in name} - READERS
    assert len(writing) == 6 and has_handle == "True"
    assert all(f'"{name}"' in writers for name in writing)


OUTPUTS, INPUTS, ROWS = 192, 128, 64
"""Rows x weight are more than products.MANY_NUMBERS."""


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
    products.forget()
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
    products.forget()
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
