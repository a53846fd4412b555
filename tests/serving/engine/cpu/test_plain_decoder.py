"""The short passes on real servers: they are taken, and their log-probs are those of transformers."""

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
    reference_logprobs,
    running_server,
    write_model,
)

SHORT = "Passes run the plain layers"
NUM_TOKENS = 24
LENGTHS = (3, 9, 40)


async def generate(url: str, prompts: list[list[int]], num_tokens: int) -> Any:
    body = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": num_tokens, "ignore_eos": True},
        "return_logprob": True,
        "cache_salt": "plain",
    }
    async with new_session() as session:
        return await post(session, f"{url}/generate", body)


def assert_short_passes_are_right(url: str, model_folder: Path, log: Path) -> None:
    prompts = [random.Random(n).choices(range(2, VOCABULARY), k=n) for n in LENGTHS]
    replies = asyncio.run(generate(url, prompts, NUM_TOKENS))
    model = load_model(model_folder)
    for prompt, reply in zip(prompts, replies, strict=True):
        served = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        expected = reference_logprobs(prompt, reply["output_ids"], [model] * NUM_TOKENS)
        assert served == pytest.approx(expected, abs=1e-5)
    assert SHORT in log.read_text()


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_a_qwen3_runs_by_short_passes(shared_engine):
    url, (model, _) = shared_engine
    assert_short_passes_are_right(url, model, model.parent / "log")


# Heads without norms; and those with biases.
@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_other_families_run_by_short_passes_too(tmp_path: Path, family: str):
    model = write_model(tmp_path / "model", seed=0, family=family)
    with running_server(model, tmp_path / "log", max_running_requests=8) as (url, _):
        assert_short_passes_are_right(url, model, tmp_path / "log")
