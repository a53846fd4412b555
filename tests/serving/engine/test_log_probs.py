"""A real server on the batched CPU attention against transformers: the same log-probs for the same tokens."""

import asyncio
import random
from typing import Any

import pytest
import torch
from serving.engine.servers import (
    STOP,
    VOCABULARY,
    load_model,
    new_session,
    post,
    reference_logprobs,
    running_server,
    write_model,
)

from asyncrl.records import SamplingParams
from asyncrl.serving.sglang.messages import Prefix, generate_body, stream

TOLERANCE = 1e-5
CHUNK = 64


@pytest.fixture
def grouped_query(shared_engine):
    """Two heads share their keys and values."""
    url, (model, _) = shared_engine
    return url, load_model(model)


@pytest.fixture(scope="module")
def multi_head(tmp_path_factory):
    """Each head has keys and values of its own; prompts are computed in chunks."""
    folder = tmp_path_factory.mktemp("log-probs")
    model_folder = write_model(folder / "model", seed=0, num_kv_heads=4)
    chunks = ("--chunked-prefill-size", str(CHUNK))
    with running_server(model_folder, folder / "log", *chunks, max_running_requests=32) as (url, _):
        yield url, load_model(model_folder)


def random_prompt(length: int, *, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, VOCABULARY), k=length)


def generate(
    url: str, prompts: list[list[int]], lengths: list[int], *, salt: str, ignore_eos: bool = False
) -> list[dict[str, Any]]:
    async def send() -> Any:
        body = {
            "input_ids": prompts,
            "sampling_params": [
                {
                    "temperature": 1.0,
                    "max_new_tokens": n,
                    "stop_token_ids": [STOP],
                    "ignore_eos": ignore_eos,
                }
                for n in lengths
            ],
            "return_logprob": True,
            "cache_salt": salt,
        }
        async with new_session() as session:
            return await post(session, f"{url}/generate", body)

    return asyncio.run(send())


def assert_log_probs_are_those_of(model, prompts, replies):
    for prompt, reply in zip(prompts, replies, strict=True):
        tokens = reply["output_ids"]
        served = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        expected = reference_logprobs(prompt, tokens, [model] * len(tokens))
        assert served == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_requests_of_mixed_lengths_get_the_log_probs_of_transformers(grouped_query):
    assert_mixed_lengths_are_right(*grouped_query)


@pytest.mark.exhaustive
def test_requests_of_mixed_lengths_get_them_also_without_shared_keys_and_values(multi_head):
    assert_mixed_lengths_are_right(*multi_head)


def assert_mixed_lengths_are_right(url, model):
    # Lengths far apart fall into several buckets, the short ones share one.
    lengths = [1, 2, 3, 9, 17, 33, 34, 35, 60, 150, 151, 400]
    prompts = [random_prompt(n, seed=n) for n in lengths]
    replies = generate(url, prompts, [24, 1, 40] * 4, salt="mixed")
    assert_log_probs_are_those_of(model, prompts, replies)


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_a_cached_prefix_does_not_change_log_probs(grouped_query):
    assert_cached_prefixes_are_right(*grouped_query)


@pytest.mark.exhaustive
def test_a_cached_prefix_does_not_change_them_either_without_shared_keys_and_values(multi_head):
    assert_cached_prefixes_are_right(*multi_head)


def assert_cached_prefixes_are_right(url, model):
    stem = random_prompt(40, seed=1)
    # A response that stops at once leaves nothing in the cache.
    generate(url, [stem], [4], salt="cached", ignore_eos=True)
    prompts = [stem, stem + [5], stem[:20] + random_prompt(30, seed=2), random_prompt(25, seed=3)]
    replies = generate(url, prompts, [12] * 4, salt="cached")
    cached = [reply["meta_info"]["cached_tokens"] for reply in replies]
    # At least one token of a prompt is always computed.
    assert cached == [39, 40, 20, 0]
    assert_log_probs_are_those_of(model, prompts, replies)


@pytest.mark.exhaustive
def test_a_prompt_that_is_prefilled_in_chunks_gets_the_same_log_probs(multi_head):
    url, model = multi_head
    prompts = [random_prompt(n, seed=n) for n in (3 * CHUNK + 7, CHUNK + 1, 10)]
    replies = generate(url, prompts, [8] * 3, salt="chunked")
    assert_log_probs_are_those_of(model, prompts, replies)


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_a_repetition_penalty_counts_the_tokens_of_the_response_alone(grouped_query):
    url, model = grouped_query
    sampling = SamplingParams(1.0, 24, (10 * VOCABULARY,), repetition_penalty=1.5)
    prompts = [random_prompt(length, seed=length) for length in (4, 20)]
    prefixes = [Prefix(f"penalty-{i}", prompt, 24, is_greedy=True) for i, prompt in enumerate(prompts)]
    body = generate_body(prefixes, sampling, salt="penalty")
    found: dict[str, list[int]] = {prefix.request_id: [] for prefix in prefixes}

    async def receive() -> None:
        async with new_session() as session:
            async for chunk in stream(session, url, body):
                found[chunk.request_id] += chunk.tokens

    asyncio.run(receive())
    num_moved = 0
    for prompt, tokens in zip(prompts, found.values(), strict=True):
        assert len(tokens) == 24
        for i, token in enumerate(tokens):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + tokens[:i]])).logits[0, -1]
            plain = int(logits.argmax())
            for said in set(tokens[:i]):
                logits[said] = logits[said] / 1.5 if logits[said] > 0 else logits[said] * 1.5
            assert token == int(logits.argmax()), i
            num_moved += token != plain
    assert num_moved, "a penalty that changes nothing shows nothing"
