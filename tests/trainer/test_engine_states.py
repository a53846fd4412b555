"""States of linear attention on a real server: the trainer finds the log-probs of requests that were taken
back, aborted, continued from the prefix cache, or sampled while weights changed."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes.learners import make_learner
from families.known import write_served
from serving.engine.servers import VOCABULARY, abort, new_session, post, publish, running_server, stream
from trainer.test_families import largest_difference

from asyncrl.records import Batch, ScoredSequence

pytestmark = pytest.mark.exhaustive

CACHE_TOKENS = 300
RESPONSE_TOKENS = 90


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("states")
    # Never sampled: every response is as long as it may be.
    model = write_served(folder / "model", "Qwen3NextForCausalLM", stop=VOCABULARY)
    eager = ("--schedule-conservativeness", "0.05")
    sizes = {"max_total_tokens": CACHE_TOKENS, "max_running_requests": 16}
    with running_server(model, folder / "log", *eager, **sizes) as (url, _):
        yield url, model


def prompts(count: int, length: int) -> list[list[int]]:
    source = random.Random(count)
    return [source.choices(range(2, VOCABULARY), k=length) for _ in range(count)]


def asked(prompt: list[int], num_tokens: int, **more: Any) -> dict[str, Any]:
    settings = {"temperature": 1.0, "max_new_tokens": num_tokens}
    return {"input_ids": prompt, "sampling_params": settings, "return_logprob": True, **more}


async def ask(url: str, *bodies: dict[str, Any]) -> list[Any]:
    async with new_session() as session:
        return list(await asyncio.gather(*(post(session, f"{url}/generate", body) for body in bodies)))


def sequence(prompt: list[int], reply: Any) -> ScoredSequence:
    tokens, entries = reply["output_ids"], reply["meta_info"]["output_token_logprobs"]
    size = len(tokens)
    name = str(hash((*prompt, *tokens)))
    behavior = [entry[0] for entry in entries]
    return ScoredSequence(name, prompt, tokens, behavior, [0] * size, [False] * size, 1.0, 1.0)


def difference(model: Path, *sequences: ScoredSequence) -> float:
    return largest_difference(make_learner(model), Batch(0, 1.0, list(sequences)))


def test_requests_that_were_taken_back_continue_where_they_were(server: tuple[str, Path]) -> None:
    url, model = server
    each = prompts(12, 17)
    replies = asyncio.run(ask(url, *(asked(prompt, RESPONSE_TOKENS) for prompt in each)))
    assert sum(reply["meta_info"]["num_retractions"] for reply in replies) > 0
    assert [len(reply["output_ids"]) for reply in replies] == [RESPONSE_TOKENS] * len(each)
    assert difference(model, *map(sequence, each, replies)) < 1e-4


def test_a_prefix_in_the_cache_has_the_state_of_its_end(server: tuple[str, Path]) -> None:
    url, model = server
    (prompt,) = prompts(1, 40)
    (first,) = asyncio.run(ask(url, asked(prompt, 30)))
    longer = prompt + first["output_ids"][:29]
    others = [longer + [token] for token in (3, 4)]
    replies = asyncio.run(ask(url, *(asked(each, 20) for each in others)))
    assert max(reply["meta_info"]["cached_tokens"] for reply in replies) >= len(prompt)
    assert difference(model, *map(sequence, others, replies)) < 1e-4


async def reply_with(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], happens: Callable[[], Awaitable[None]]
) -> Any:
    """The whole reply of a stream; `happens` runs at its first tokens."""
    tokens, entries, last = [], [], {}
    async for event in stream(session, url, body):
        if not tokens:
            await happens()
        tokens += event["output_ids"]
        entries += event["meta_info"]["output_token_logprobs"]
        last = event["meta_info"]
    return {"output_ids": tokens, "meta_info": last | {"output_token_logprobs": entries}}


async def aborted(url: str, prompt: list[int]) -> Any:
    """A reply that was aborted after its first tokens."""
    async with new_session() as session:
        body = asked(prompt, 200, rid="a" * 32)
        return await reply_with(session, url, body, lambda: abort(session, url, "a" * 32))


def test_an_aborted_request_is_resumed_from_its_tokens(server: tuple[str, Path]) -> None:
    url, model = server
    (prompt,) = prompts(1, 25)
    partial = asyncio.run(aborted(url, prompt))
    assert len(partial["output_ids"]) < 200
    resumed = prompt + partial["output_ids"]
    (reply,) = asyncio.run(ask(url, asked(resumed, 20)))
    assert difference(model, sequence(resumed, reply)) < 1e-4


async def sampled_while_weights_change(url: str, model: Path, prompt: list[int]) -> Any:
    """A reply whose weights were loaded once more after the first tokens."""
    async with new_session() as session:
        return await reply_with(session, url, asked(prompt, 200), lambda: publish(session, url, model, 1))


def test_states_survive_a_publish(server: tuple[str, Path]) -> None:
    url, model = server
    (prompt,) = prompts(1, 31)
    # The same weights: what is sampled before and behind the update is the trainer's.
    reply = asyncio.run(sampled_while_weights_change(url, model, prompt))
    assert len(reply["output_ids"]) == 200
    assert [span["version"] for span in reply["meta_info"]["weight_versions"]] == ["0", "1"]
    assert difference(model, sequence(prompt, reply)) < 1e-4
