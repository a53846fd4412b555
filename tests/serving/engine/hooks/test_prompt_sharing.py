"""A real server computes the prompt of a group once, and caches what somebody may continue."""

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from serving.engine.servers import (
    VOCABULARY,
    abort,
    load_model,
    new_session,
    reference_logprobs,
    stream,
)

GROUP = 8
MAX_RUNNING = 16
"""Of the shared engine."""
TOLERANCE = 1e-5
Replies = dict[str, dict[str, Any]]


@pytest.fixture
def engine(shared_engine):
    url, (model, _) = shared_engine
    return url, model


def prompt(seed: int, length: int = 40) -> list[int]:
    return random.Random(seed).choices(range(2, VOCABULARY), k=length)


def body(prompts: list[list[int]], num_tokens: int = 12, **changes: Any) -> dict[str, Any]:
    sampling = {"temperature": 1.0, "max_new_tokens": num_tokens, "ignore_eos": True}
    return {
        "input_ids": prompts,
        "rid": [uuid.uuid4().hex for _ in prompts],
        "sampling_params": sampling | changes.pop("sampling", {}),
        "return_logprob": True,
        "cache_salt": uuid.uuid4().hex,
    } | changes


async def replies(session, url: str, request: dict[str, Any]) -> Replies:
    """Request id -> tokens, log-probs, cached tokens and end, in the order of the request."""
    found: Replies = {rid: {"tokens": [], "logprobs": []} for rid in request["rid"]}
    async for event in stream(session, url, request):
        meta = event["meta_info"]
        reply = found[meta["id"]]
        reply["tokens"] += event["output_ids"]
        reply["logprobs"] += [entry[0] for entry in meta.get("output_token_logprobs", [])]
        reply |= {"cached": meta.get("cached_tokens", 0), "end": meta["finish_reason"]}
        found[meta["id"]] = reply
    return found


async def until(session, url: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Asks the server for its load again and again."""
    async with asyncio.timeout(300):
        while True:
            async with session.get(f"{url}/v1/loads") as reply:
                (load,) = (await reply.json())["loads"]
            if condition(load):
                return


def cached(found: Replies) -> list[int]:
    return sorted(reply["cached"] for reply in found.values())


def run(work):
    async def with_session():
        async with new_session() as session:
            return await work(session)

    return asyncio.run(with_session())


def test_the_samples_of_a_group_share_the_keys_and_values_of_their_prompt(engine):
    url, folder = engine
    shared = prompt(1)
    found = run(lambda session: replies(session, url, body([shared] * GROUP)))
    assert cached(found) == [0] + [len(shared) - 1] * (GROUP - 1)
    model = load_model(folder)
    for reply in found.values():
        truth = reference_logprobs(shared, reply["tokens"], [model] * 12)
        assert reply["logprobs"] == pytest.approx(truth, abs=TOLERANCE)


def test_several_groups_at_once_share_within_each_group_and_not_with_another_salt(engine):
    url, _ = engine

    async def work(session):
        groups = [body([prompt(seed)] * GROUP) for seed in (2, 3, 3)]
        return await asyncio.gather(*(replies(session, url, group) for group in groups))

    for found in run(work):
        assert cached(found) == [0] + [39] * (GROUP - 1)


def test_prompts_that_only_begin_alike_do_not_wait_for_each_other(engine):
    url, _ = engine
    common = prompt(4)
    found = run(lambda session: replies(session, url, body([[*common, last] for last in (2, 3, 4)])))
    assert cached(found)[0] == 0
    assert {len(reply["tokens"]) for reply in found.values()} == {12}


def test_the_others_go_on_when_the_first_of_a_group_is_aborted_before_its_turn(engine):
    url, _ = engine
    # They fill the server, so that the group has to wait: seconds if nobody aborts them.
    long = body([prompt(8)] * MAX_RUNNING, 1900)
    group = body([prompt(5)] * GROUP)

    async def work(session):
        running = asyncio.create_task(replies(session, url, long))
        await until(session, url, lambda load: load["num_running_reqs"] == MAX_RUNNING)
        streaming = asyncio.create_task(replies(session, url, group))
        await until(session, url, lambda load: load["num_waiting_reqs"] == GROUP)
        for rid in (group["rid"][0], *long["rid"]):
            await abort(session, url, rid)
        await running
        return await streaming

    found = run(work)
    assert [reply["end"]["type"] for reply in found.values()] == ["abort"] + ["length"] * (GROUP - 1)
    assert cached(found)[1:] == [0] + [39] * (GROUP - 2)


def test_what_reached_its_limit_can_be_resumed_from_the_cache_and_what_stopped_is_freed(engine):
    url, _ = engine
    start = prompt(6)

    async def work(session, **sampling: Any) -> tuple[dict[str, Any], int]:
        """A greedy reply, and how much of it a request finds that continues from its end."""
        salt = uuid.uuid4().hex
        greedy = {"temperature": 0.0} | sampling
        (reply,) = (await replies(session, url, body([start], cache_salt=salt, sampling=greedy))).values()
        resumed = await replies(session, url, body([[*start, *reply["tokens"]]], 1, cache_salt=salt))
        return reply, cached(resumed)[0]

    limited, found = run(work)
    # The last token was sampled and never computed.
    assert limited["end"]["type"] == "length" and found == len(start) + len(limited["tokens"]) - 1
    end = next(token for token in limited["tokens"] if token != limited["tokens"][0])
    stopped, found = run(lambda session: work(session, stop_token_ids=[end], ignore_eos=False))
    assert stopped["end"]["type"] == "stop" and found == len(start)
