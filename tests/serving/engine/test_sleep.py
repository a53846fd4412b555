"""A real server sleeps and wakes with other weights: its memory is gone meanwhile, its answers are right."""

import asyncio
import random
import uuid
from typing import Any

import aiohttp
import psutil
import pytest
from serving.engine.servers import VOCABULARY, load_model, new_session, reference_logprobs, stream

from asyncrl.errors import WeightMismatch
from asyncrl.serving.publication import LoadFolders, Publication, install
from asyncrl.serving.sglang import control
from asyncrl.trainer.network.export import read_weights
from asyncrl.trainer.publishing.host_weights import digests_of

ENDLESS = 1900
TOLERANCE = 1e-5


def body(prompt: list[int], num_tokens: int) -> dict[str, Any]:
    return {
        "input_ids": [prompt],
        "rid": [uuid.uuid4().hex],
        "sampling_params": [{"temperature": 1.0, "max_new_tokens": num_tokens, "ignore_eos": True}],
        "return_logprob": True,
        # The salt that the server's cache would answer for, if any of it were left.
        "cache_salt": ["the same"],
    }


async def generate(
    session: aiohttp.ClientSession, url: str, request: dict[str, Any], begun: asyncio.Event | None = None
) -> tuple[Any, ...]:
    """Tokens, log-probs, cached prompt tokens and why it ended; sets `begun` at the first token."""
    tokens, logprobs, meta = [], [], {}
    async for event in stream(session, url, request):
        if begun is not None:
            begun.set()
        meta = event["meta_info"]
        tokens += event["output_ids"]
        logprobs += [entry[0] for entry in meta["output_token_logprobs"]]
    return tokens, logprobs, meta["cached_tokens"], meta["finish_reason"]["type"]


def scheduler_bytes(url: str) -> int:
    """Resident, of the process that computes for the server at `url`."""
    port = int(url.rpartition(":")[2])

    def listens(process: psutil.Process) -> bool:
        found = process.net_connections("tcp")
        return any(each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in found)

    (front,) = filter(listens, psutil.Process().children(recursive=True))
    return max(child.memory_info().rss for child in front.children(recursive=True))


class LoadNothing(LoadFolders):
    """As if the weights were still there."""

    async def __call__(self, *_: object) -> None: ...


def test_a_server_that_slept_answers_with_the_new_weights_and_none_of_its_old_cache(
    shared_engine: Any,
) -> None:
    url, folders = shared_engine
    prompt = random.Random(12).choices(range(2, VOCABULARY), k=30)

    publications = [
        Publication(version, folder, digests_of(dict(read_weights(folder))))
        for version, folder in enumerate(folders)
    ]

    async def run() -> None:
        async with new_session() as session:
            await install(session, url, publications[0])
            # Enough steps at once for packed weights, which a sleep must give back too.
            together = [generate(session, url, body(prompt, 60)) for _ in range(16)]
            await asyncio.gather(*together)
            begun = asyncio.Event()
            endless = asyncio.create_task(generate(session, url, body(prompt, ENDLESS), begun))
            await begun.wait()
            awake = scheduler_bytes(url)
            await control.sleep(session, url)
            # Its cache is larger still.
            weight_bytes = (folders[0] / "model.safetensors").stat().st_size
            assert awake - scheduler_bytes(url) > weight_bytes
            # What streamed has ended, and carries what it has.
            tokens, logprobs, _, finish = await endless
            assert finish == "abort" and len(tokens) < ENDLESS
            expected = reference_logprobs(prompt, tokens, [load_model(folders[0])] * len(tokens))
            assert logprobs == pytest.approx(expected, abs=TOLERANCE)

            await control.wake(session, url)
            # Until weights are loaded it holds none: a publication of those that it slept with is refused.
            with pytest.raises(WeightMismatch):
                await install(session, url, publications[0], load=LoadNothing())
            await install(session, url, publications[1])
            answers = await asyncio.gather(*(generate(session, url, body(prompt, 60)) for _ in range(16)))
            assert min(num_cached for _, _, num_cached, _ in answers) == 0
            for tokens, logprobs, _, _ in answers:
                expected = reference_logprobs(prompt, tokens, [load_model(folders[1])] * 60)
                assert logprobs == pytest.approx(expected, abs=TOLERANCE)
            await install(session, url, publications[0])

    asyncio.run(run())
