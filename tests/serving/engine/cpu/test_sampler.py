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


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_greedy_requests_answer_the_same_alone_and_among_sampled_ones(shared_engine):
    url, _ = shared_engine
    greedy = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
    alone = {"input_ids": [[5, 6, 7]], "sampling_params": [greedy], "return_logprob": True}
    sampled = {"temperature": 1.0, "max_new_tokens": 9, "ignore_eos": True}
    mixed = {
        "input_ids": [[8, 9], [5, 6, 7], [8, 9]],
        "sampling_params": [sampled, greedy, sampled],
        "return_logprob": True,
    }
    (first,), (_, second, _) = asyncio.run(generate_in_turn(url, alone, mixed))
    assert second["output_ids"] == first["output_ids"]
    logprobs = [
        [value for value, *_ in reply["meta_info"]["output_token_logprobs"]] for reply in (first, second)
    ]
    assert logprobs[1] == pytest.approx(logprobs[0], abs=1e-4)


@pytest.mark.parametrize("name", ["greedy", "top_k", "top_p", "min_p"])
def test_sglang_samples_only_while_a_request_that_cuts_words_runs(compared, name: str):
    samplers = dict(compared["compare_sampler"])
    expected = "ours" if name == "greedy" else "theirs"
    assert (samplers[name], samplers[f"among_{name}"]) == (expected, expected)
    assert samplers["plain"] == samplers[f"after_{name}"] == "ours"
