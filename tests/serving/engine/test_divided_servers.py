"""Servers whose two ranks share experts or attention out: a publish reaches both amid responses."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from serving.engine.servers import (
    load_model,
    new_session,
    post,
    publish,
    reference_logprobs,
    running_server,
    stream,
    write_model,
)

from asyncrl.serving.sglang import hooks, weights
from asyncrl.trainer.network.export import read_weights
from asyncrl.trainer.publishing.host_weights import digests_of

EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
EXPERTS |= {"family": "qwen3_moe", "norm_topk_prob": True, "tie_word_embeddings": False}
DIVIDED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "experts": (EXPERTS, {"expert_parallel_size": 2}),
    "attention": ({}, {"attention_data_parallel_size": 2}),
}
NUM_REQUESTS, NUM_TOKENS = 6, 96


async def play(url: str, folders: list[Path]) -> list[dict[str, Any]]:
    """Last events of requests that ran while version 2 took the place of version 1."""
    async with new_session() as session:
        assert (await hooks.check_hooks(session, url)).num_ranks == 2
        await publish(session, url, folders[1], 1)
        begun = asyncio.Semaphore(0)

        async def ask(number: int) -> dict[str, Any]:
            params = {"max_new_tokens": NUM_TOKENS, "temperature": 1.0, "ignore_eos": True}
            body = {"input_ids": [2 + number, 3, 4, 5], "sampling_params": params, "return_logprob": True}
            tokens: list[int] = []
            logprobs: list[float] = []
            async for event in stream(session, url, body | {"rid": f"request-{number}"}):
                if not tokens:
                    begun.release()
                tokens += event["output_ids"]
                logprobs += [entry[0] for entry in event["meta_info"]["output_token_logprobs"]]
            return {"prompt": body["input_ids"], "tokens": tokens, "logprobs": logprobs, **event["meta_info"]}

        asked = [asyncio.create_task(ask(number)) for number in range(NUM_REQUESTS)]
        for _ in asked:
            await begun.acquire()
        await publish(session, url, folders[0], 2)
        answers = await asyncio.gather(*asked)
        ranks = await weights.weight_digests(session, url, timeout_seconds=60)
        wanted = digests_of(dict(read_weights(folders[0])))
        assert {len(rank) for rank in ranks} == {len(wanted)} and all(rank == wanted for rank in ranks)
        await post(session, f"{url}/pause_generation", {"mode": "abort"})
        return answers


@pytest.mark.slow
@pytest.mark.parametrize("name", DIVIDED)
def test_each_token_has_its_version_and_the_log_prob_of_that_versions_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, divided = DIVIDED[name]
    folders = [write_model(tmp_path / str(seed), seed=seed, **model) for seed in (0, 1)]
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
    sizes = {"tensor_parallel_size": 2, "max_total_tokens": 2048, **divided}
    with running_server(folders[0], tmp_path / "log", **sizes) as (url, _):
        answers = asyncio.run(play(url, folders))
    models = {"1": load_model(folders[1]), "2": load_model(folders[0])}
    for answer in answers:
        spans = answer["weight_versions"]
        assert [span["version"] for span in spans] == ["1", "2"] and spans[-1]["end"] == NUM_TOKENS
        of_tokens = [models[span["version"]] for span in spans for _ in range(span["start"], span["end"])]
        expected = reference_logprobs(answer["prompt"], answer["tokens"], of_tokens)
        differences = [abs(a - b) for a, b in zip(answer["logprobs"], expected, strict=True)]
        assert max(differences) < 1e-4, (name, max(differences))
