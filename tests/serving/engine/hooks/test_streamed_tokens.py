"""Weights change while a real server generates: each chunk says which version made which token, truly, also
on schedules several steps ahead. Chunks that waited for a slow reader keep their experts."""

import asyncio
import random
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from serving.engine.servers import (
    VOCABULARY,
    abort,
    load_model,
    new_session,
    post,
    publish,
    reference_logprobs,
    running_server,
    said_beside_engine,
    stream,
    write_model,
)

from asyncrl.serving.sglang.http import get_json

TOLERANCE = 1e-5
ENDLESS = 1900
"""Tokens that take a server seconds: tests abort such a request when they have seen what they wait for."""


@dataclass
class Received:
    """One request's stream, put together."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    num_cached: int = 0


@pytest.fixture
def chunking_engine(tmp_path):
    """A server that computes prompts in chunks of 32 tokens; its URL and the folders of two models."""
    folders = [write_model(tmp_path / str(seed), seed=seed) for seed in range(2)]
    with running_server(folders[0], tmp_path / "log", "--chunked-prefill-size", "32") as (url, _):
        yield url, folders


@pytest.fixture
def engine(shared_engine):
    url, folders = shared_engine
    return url, folders, [load_model(folder) for folder in folders]


def body(prompts: list[list[int]], num_tokens: int, *, salt: str) -> dict[str, Any]:
    return {
        "input_ids": prompts,
        "rid": [uuid.uuid4().hex for _ in prompts],
        "sampling_params": {"temperature": 1.0, "max_new_tokens": num_tokens, "ignore_eos": True},
        "return_logprob": True,
        "cache_salt": salt,
    }


def receive(received: dict[str, Received], event: dict[str, Any]) -> Received:
    """Adds one event; its spans must cover all tokens so far and never take back what was said."""
    meta = event["meta_info"]
    so_far = received.setdefault(meta["id"], Received())
    so_far.tokens += event["output_ids"]
    so_far.logprobs += [entry[0] for entry in meta["output_token_logprobs"]]
    so_far.num_cached = meta["cached_tokens"]
    before, spans = versions_of(so_far.spans), meta["weight_versions"]
    assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
    assert spans[-1]["end"] == len(so_far.tokens)
    assert versions_of(spans)[: len(before)] == before
    so_far.spans = spans
    return so_far


def versions_of(spans: list[dict[str, Any]]) -> list[int]:
    """The version of each token."""
    return [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


async def generate(session, url, prompts, num_tokens, *, salt) -> list[Received]:
    received: dict[str, Received] = {}
    request = body(prompts, num_tokens, salt=salt)
    async for event in stream(session, url, request):
        receive(received, event)
    return [received[request_id] for request_id in request["rid"]]


def test_each_token_has_the_log_prob_of_the_version_its_span_names(engine):
    url, folders, models = engine
    prompts = [random.Random(seed).choices(range(2, VOCABULARY), k=5 + seed) for seed in range(6)]

    async def run() -> list[Received]:
        received: dict[str, Received] = {}
        request = body(prompts, ENDLESS, salt="v0")
        to_publish = [(1, 20), (2, 60)]
        is_aborted = False
        async with new_session() as session:
            async for event in stream(session, url, request):
                tokens = receive(received, event).tokens
                if to_publish and len(tokens) > to_publish[0][1]:
                    version, _ = to_publish.pop(0)
                    await publish(session, url, folders[version % 2], version)
                newest = [found.spans[-1]["version"] for found in received.values()]
                if not is_aborted and newest == ["2"] * len(prompts):
                    is_aborted = True
                    for request_id in request["rid"]:
                        await abort(session, url, request_id)
            await publish(session, url, folders[0], 0)
        return [received[request_id] for request_id in request["rid"]]

    responses = asyncio.run(run())
    for prompt, response in zip(prompts, responses, strict=True):
        assert [span["version"] for span in response.spans] == ["0", "1", "2"]
        owners = [models[version % 2] for version in versions_of(response.spans)]
        expected = reference_logprobs(prompt, response.tokens, owners)
        assert response.logprobs == pytest.approx(expected, abs=TOLERANCE)


def test_a_salted_prefix_is_not_shared_between_versions(engine):
    url, folders, models = engine
    prompt = random.Random(9).choices(range(2, VOCABULARY), k=30)

    async def run() -> list[Received]:
        async with new_session() as session:
            [warm] = await generate(session, url, [prompt], 4, salt="run-v0")
            await publish(session, url, folders[1], 1)
            [salted] = await generate(session, url, [prompt], 8, salt="run-v1")
            [stale] = await generate(session, url, [prompt], 8, salt="run-v0")
            await publish(session, url, folders[0], 0)
        return [warm, salted, stale]

    warm, salted, stale = asyncio.run(run())
    fresh = reference_logprobs(prompt, salted.tokens, [models[1]] * 8)
    assert salted.num_cached == 0
    assert salted.logprobs == pytest.approx(fresh, abs=TOLERANCE)
    # The same request with the former salt shows that the salt did it: it reads keys and values of version 0.
    fresh = reference_logprobs(prompt, stale.tokens, [models[1]] * 8)
    assert stale.num_cached == len(prompt) - 1
    assert stale.logprobs != pytest.approx(fresh, abs=100 * TOLERANCE)


def test_a_prompt_that_two_versions_computed_begins_with_a_span_of_no_tokens(chunking_engine):
    url, folders = chunking_engine
    models = [load_model(folder) for folder in folders]

    async def computed(session: aiohttp.ClientSession) -> int:
        """Tokens that prefills have computed, as far as the scheduler shows them."""
        answer = await get_json(session, f"{url}/v1/loads", timeout_seconds=60.0)
        return int(answer["loads"][0]["total_prefill_uncached_tokens"])

    async def attempt(prompt: list[int]) -> Received | None:
        """The response; None where the whole prompt was computed before the update came."""
        async with new_session() as session:
            await publish(session, url, folders[0], 0)
            begun = await computed(session)
            response = asyncio.create_task(generate(session, url, [prompt], 8, salt="v0"))
            # Chunks of 32 tokens.
            while await computed(session) < begun + 3 * 32:
                if response.done():
                    break
            await publish(session, url, folders[1], 1)
            is_between = not response.done() and await computed(session) < begun + 1600
            [received] = await response
            # The scheduler shows a count with its next batch, or when it is idle.
            while (count := await computed(session) - begun) < len(prompt):
                pass
        assert count == len(prompt) and received.num_cached == 0
        return received if is_between else None

    for seed in range(20):
        prompt = random.Random(f"{seed}").choices(range(2, VOCABULARY), k=1800)
        if (response := asyncio.run(attempt(prompt))) is not None:
            break
    assert response is not None, "no update fell between the chunks of a prompt"
    assert response.spans == [
        {"version": "0", "start": 0, "end": 0},
        {"version": "1", "start": 0, "end": 8},
    ]
    fresh = reference_logprobs(prompt, response.tokens, [models[1]] * 8)
    assert response.logprobs != pytest.approx(fresh, abs=100 * TOLERANCE)


def test_an_aborted_request_keeps_its_confirmed_tokens(engine):
    url, _, models = engine
    prompt = random.Random(10).choices(range(2, VOCABULARY), k=6)

    async def run() -> tuple[Received, Any]:
        received: dict[str, Received] = {}
        request = body([prompt], ENDLESS, salt="v0")
        finish, num_aborts = None, 0
        async with new_session() as session:
            async for event in stream(session, url, request):
                tokens = receive(received, event).tokens
                finish = event["meta_info"]["finish_reason"]
                if finish is None and len(tokens) >= 17 and not num_aborts:
                    await abort(session, url, request["rid"][0])
                    num_aborts += 1
        return received[request["rid"][0]], finish

    response, finish = asyncio.run(run())
    assert finish["type"] == "abort"
    assert 17 <= len(response.tokens) < ENDLESS
    expected = reference_logprobs(prompt, response.tokens, [models[0]] * len(response.tokens))
    assert response.logprobs == pytest.approx(expected, abs=TOLERANCE)


def test_a_pause_that_aborts_returns_when_the_last_request_has_ended(engine):
    url, _, _ = engine
    prompt = random.Random(11).choices(range(2, VOCABULARY), k=6)

    async def pause_once(session) -> float:
        """Seconds until a pause returned that aborted a running request."""
        seconds, finish = None, None
        async for event in stream(session, url, body([prompt], ENDLESS, salt="v0")):
            finish = event["meta_info"]["finish_reason"]
            if finish is None and seconds is None:
                begin = time.perf_counter()
                await post(session, f"{url}/pause_generation", {"mode": "abort"})
                seconds = time.perf_counter() - begin
                await post(session, f"{url}/continue_generation", {"torch_empty_cache": False})
        assert finish["type"] == "abort"
        return seconds

    async def run() -> bool:
        async with new_session() as session:
            for _ in range(20):
                # Without the hook each takes a second at least; a busy machine may delay one or another.
                if await pause_once(session) < 0.9:
                    return True
        return False

    assert asyncio.run(run())


JOIN = """
import base64
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from asyncrl.serving.engine.hooks.streamed_tokens import _join_rows

def chunk(tokens, rows):
    rows = {} if rows is None else {"routed_experts": base64.b64encode(rows).decode()}
    return {"output_ids": tokens, "meta_info": rows}

def join(*chunks):
    joined = _join_rows(TokenizerManager._coalesce_streaming_chunks, None, list(chunks), "r")
    return joined["output_ids"], base64.b64decode(joined["meta_info"].get("routed_experts", "")).decode()

print(*join(chunk([5], b"abc"), chunk([6, 7], b"de"), chunk([], None), chunk([8], b"f")))
print(*join(chunk([5], None), chunk([6], None)))
"""


@pytest.mark.exhaustive
def test_joined_chunks_have_the_rows_of_all_of_them_in_order(tmp_path: Path) -> None:
    assert said_beside_engine(JOIN, tmp_path) == ["[5, 6, 7, 8] abcdef", "[5, 6] "]


SCRIPT = Path(__file__).with_name("schedules_ahead.py")


def test_every_pending_token_has_the_old_version(tmp_path: Path) -> None:
    assert said_beside_engine(SCRIPT, tmp_path) == [
        # 5 tokens, 2 steps pending: 7 of version 1
        "ahead 1:0-7 2:7-8",
        "beside 1:0-3 2:3-5",
        "new 1:0-1 2:1-3",
    ]
