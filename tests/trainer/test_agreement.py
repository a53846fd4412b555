"""With model.bitwise_agreement the trainer finds the log-probs of a real server to the last bit."""

import asyncio
import random
from pathlib import Path
from typing import Literal

import pytest
from fakes.learners import make_learner
from serving.engine.servers import STOP, VOCABULARY, new_session, post, publish, running_server, write_model

from asyncrl.records import Batch, ScoredSequence
from asyncrl.serving.sglang.hooks import check_hooks
from asyncrl.trainer.packing.batch import rank_micro_batches

TEMPERATURE = 0.8


async def sample(url: str, name: str, num_requests: int, longest: int) -> list[ScoredSequence]:
    """Concurrent requests of different lengths, each then continued from where its limit cut it off."""
    source = random.Random(name)
    found = []

    async def ask(i: int) -> None:
        prompt = source.choices(range(2, VOCABULARY), k=source.randint(1, longest))
        tokens: list[int] = []
        logprobs: list[float] = []
        for limit in (source.randint(1, 40), source.randint(1, 90)):
            settings = {"temperature": TEMPERATURE, "max_new_tokens": limit, "stop_token_ids": [STOP]}
            # An evaluation's requests run beside those that are trained.
            settings |= {"top_p": 0.9} if i % 4 == 1 else {}
            body = {"input_ids": prompt + tokens, "sampling_params": settings, "return_logprob": True}
            body["cache_salt"] = name
            reply = await post(session, f"{url}/generate", body)
            tokens += reply["output_ids"]
            logprobs += [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
            if tokens[-1] == STOP:
                break
        size = len(tokens)
        found.append(
            ScoredSequence(f"{name} {i}", prompt, tokens, logprobs, [0] * size, [False] * size, 1.0, 1.0)
        )

    async with new_session() as session:
        await asyncio.gather(*(ask(i) for i in range(num_requests)))
    return found


def differences(model: Path, sequences: list[ScoredSequence], **section: object) -> list[float]:
    """Difference of each token's log-prob, trainer to server; and the metrics of a step on them."""
    learner = make_learner(model, model=section, trainer={"tokens_per_micro_batch": 1500})
    batch = Batch(0, TEMPERATURE, sequences)
    micros = rank_micro_batches(batch, budget_tokens=1500, rank=0, num_ranks=1, kernel=learner.kernel)
    found = learner.passes.logprobs(learner.parallel_chunks, micros, TEMPERATURE)
    largest = max((a - micro.behavior).abs().max().item() for a, micro in zip(found, micros, strict=True))
    metrics = learner.step(batch)
    return [largest, metrics["mismatch_kl"], metrics["max_importance_ratio"] - 1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probs_agree_to_the_last_bit(dtype: Literal["float32", "bfloat16"], tmp_path: Path):
    model = write_model(tmp_path / "model", seed=0)
    other = write_model(tmp_path / "other", seed=1)
    # Prefills in chunks: two prompts of three are longer.
    options = ("--chunked-prefill-size", "64")
    with running_server(model, tmp_path / "log", *options, dtype=dtype, is_bitwise=True) as (url, _):
        alone = asyncio.run(sample(url, "alone", 1, 200))
        many = asyncio.run(sample(url, "many", 24, 200))

        async def install() -> None:
            async with new_session() as session:
                # The server says so to a run, which asks.
                await check_hooks(session, url, is_bitwise=True)
                await publish(session, url, other, 1)

        asyncio.run(install())
        published = asyncio.run(sample(url, "published", 8, 100))
    section = {"dtype": dtype, "bitwise_agreement": True}
    assert differences(model, alone + many, **section) == [0.0, 0.0, 0.0]
    assert differences(other, published, **section) == [0.0, 0.0, 0.0]
    # The same tokens by the ordinary kernels: this test can fail.
    assert differences(model, alone + many, dtype=dtype)[0] > 0
