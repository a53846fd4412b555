"""Packed weights in a real server: what it computes after a publish is of the published weights."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from serving.engine.servers import (
    VOCABULARY,
    load_model,
    new_session,
    post,
    publish,
    reference_logprobs,
    said_beside_engine,
)

from asyncrl.serving.engine.cpu.packed_weights import PAYS_AFTER
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
