"""A real server says how long its passes took, and how many requests or tokens were in them."""

import asyncio
import uuid

from serving.engine.servers import new_session, stream

from asyncrl.serving.pass_sums import PassSums
from asyncrl.serving.sglang.health import passes

NUM_TOKENS = 40


async def generate(session, url: str, prompts: list[list[int]]) -> None:
    body = {
        "input_ids": prompts,
        "rid": [uuid.uuid4().hex for _ in prompts],
        "sampling_params": {"max_new_tokens": NUM_TOKENS, "ignore_eos": True},
        "cache_salt": uuid.uuid4().hex,
    }
    async for _ in stream(session, url, body):
        pass


async def during(session, url: str, prompts: list[list[int]]) -> PassSums:
    before = await passes(session, url)
    await generate(session, url, prompts)
    return (await passes(session, url)).since(before)


async def test_passes_are_counted_by_requests_and_prefills_by_the_tokens_that_no_cache_held(
    shared_engine,
) -> None:
    url, _ = shared_engine
    async with new_session() as session:
        began = asyncio.get_running_loop().time()
        # Four requests to one prompt of 30 tokens: the first computes it, then each of the others its end.
        found = await during(session, url, [list(range(2, 22)) + list(range(2, 12))] * 4)
        seconds = asyncio.get_running_loop().time() - began
    decode, prefill = found.decode, found.prefill
    # A decode pass that follows a prefill has no length of its own, and some may wait for nothing else.
    assert 0.8 * NUM_TOKENS <= decode.passes <= NUM_TOKENS
    assert 3.0 < decode.size / decode.passes <= 4.0
    # Requests hold the prompt's 30 tokens and what they have: half of the 40 on average.
    assert 45.0 < decode.held / decode.size < 55.0
    assert decode.held**2 / decode.passes < decode.held_squared < 1.2 * decode.held**2 / decode.passes
    assert 30.0 * decode.size_squared < decode.size_held < 70.0 * decode.size_squared
    assert 0.0 < decode.held_seconds <= decode.held * decode.seconds
    assert (prefill.passes, prefill.size, prefill.size_squared) == (2.0, 33.0, 30.0**2 + 3.0**2)
    assert 0.0 < decode.seconds + prefill.seconds < seconds
    for sums in (decode, prefill):
        assert 0.0 < sums.size_seconds <= sums.size * sums.seconds
