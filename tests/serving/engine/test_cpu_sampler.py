"""The shorter sampling on a real server, for requests that want other things than a run's."""

import asyncio
from typing import Any

import pytest
from serving.engine.servers import new_session, post


async def generate_in_turn(url: str, *bodies: dict[str, Any]) -> list[Any]:
    async with new_session() as session:
        return [await post(session, f"{url}/generate", body) for body in bodies]


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_a_batch_without_log_probs_is_sampled_and_the_server_lives_on(shared_engine):
    url, _ = shared_engine
    # When the shorter one ends the batch is filtered, and its lists of log-probs are None from then on.
    parameters = [{"temperature": 1.0, "max_new_tokens": n, "ignore_eos": True} for n in (2, 9)]
    body = {"input_ids": [[5, 6, 7], [8, 9]], "sampling_params": parameters}
    without, with_them = asyncio.run(generate_in_turn(url, body, body | {"return_logprob": True}))
    assert [len(reply["output_ids"]) for reply in without] == [2, 9]
    assert all("output_token_logprobs" not in reply["meta_info"] for reply in without)
    assert [len(reply["meta_info"]["output_token_logprobs"]) for reply in with_them] == [2, 9]
