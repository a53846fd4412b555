"""A real server samples at a temperature other than 1; the trainer finds the log-probs that it sent."""

import asyncio
import dataclasses
import math
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.columns import COLUMNS
from fakes.learners import make_learner
from fakes.models import write_model
from fakes.recipes import make_recipe
from serving.engine.servers import NEVER, STOP, VOCABULARY, new_session, post, running_server

from asyncrl.model.column_bytes import KEPT_SETS, num_kept_sets
from asyncrl.model.unsampled import Unsampled
from asyncrl.records import Batch, SamplingParams, ScoredSequence, Segment
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.sglang.columns import KeptSets
from asyncrl.serving.sglang.messages import Prefix, generate_body, stream
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.parts.reference import Reference
from asyncrl.trainer.parts.table import build_learner
from asyncrl.trainer.step.part import MiniBatch

TEMPERATURES = (0.6, 1.7)


def sample(url: str, temperature: float, vocabulary: int = VOCABULARY) -> list[ScoredSequence]:
    source = random.Random(round(10 * temperature))
    prompts = [source.choices(range(2, vocabulary), k=length) for length in (3, 9, 17, 30)]
    settings = {"temperature": temperature, "max_new_tokens": 24, "stop_token_ids": [STOP]}
    body = {"input_ids": prompts, "sampling_params": settings, "return_logprob": True}

    async def send() -> list[dict]:
        async with new_session() as session:
            return await post(session, f"{url}/generate", body)

    sequences = []
    for i, (prompt, reply) in enumerate(zip(prompts, asyncio.run(send()), strict=True)):
        tokens, size = reply["output_ids"], len(reply["output_ids"])
        logprobs = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        sequences.append(
            ScoredSequence(str(i), prompt, tokens, logprobs, [0] * size, [False] * size, 1.0, 1.0)
        )
    return sequences


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_trainer_finds_the_log_probs_of_the_distribution_that_was_sampled(
    shared_engine: tuple[str, list[Path]], temperature: float
):
    url, (model, _) = shared_engine
    batch = Batch(0, temperature, sample(url, temperature))
    learner = make_learner(model)
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    (found,) = learner.passes.logprobs(learner.parallel_chunks, [micro], temperature)
    assert found.tolist() == pytest.approx(micro.behavior.tolist(), abs=1e-5)
    (untempered,) = learner.passes.logprobs(learner.parallel_chunks, [micro], 1.0)
    assert (untempered - micro.behavior).abs().max() > 0.1
    metrics = learner.accumulate(MiniBatch([micro], temperature))
    assert metrics["mismatch_kl"] < 1e-8 and metrics["sequence_log_ratio_max"] < 1e-3
    assert not math.isnan(metrics["weight_effective_share"])


def shift_logits(folder: Path) -> None:
    """Adds one vector to all rows of the output layer: each position's logits move together, which no softmax
    sees, and get the large values that language models have."""
    (file,) = folder.glob("*.safetensors")
    tensors = safetensors.torch.load_file(file)
    head = tensors["lm_head.weight"]
    head += 2 * torch.randn(head.shape[1], generator=torch.Generator().manual_seed(0))
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.slow
def test_float32_logits_bring_the_log_probs_of_bfloat16_engines_together(tmp_path: Path):
    model = write_model(tmp_path / "model")
    shift_logits(model)
    mismatch = {}
    for is_exact in (False, True):
        extra = ("--enable-fp32-lm-head",) if is_exact else ()
        with running_server(model, tmp_path / f"{is_exact}.log", *extra, dtype="bfloat16") as (url, _):
            batch = Batch(0, 1.0, [*sample(url, 1.0), *renamed(sample(url, 1.0))])
        learner = make_learner(model, model={"dtype": "bfloat16", "float32_logits": is_exact})
        mismatch[is_exact] = learner.step(batch)["mismatch_kl"]
    # 4.0e-4 and 3.8e-5 over eight batches.
    assert 0 < mismatch[True] < 0.4 * mismatch[False]


def renamed(sequences: list[ScoredSequence]) -> list[ScoredSequence]:
    return [dataclasses.replace(one, sequence_id=f"again {one.sequence_id}") for one in sequences]


def test_the_trainer_leaves_out_the_tokens_that_the_server_never_samples(masked_engine: tuple[str, Path]):
    url, model = masked_engine
    batch = Batch(0, 0.8, sample(url, 0.8, NEVER[0]))
    learner = make_learner(model, algorithm={"kl": {"coefficient": 0.1}})
    assert learner.unsampled.ids == NEVER and learner.part(Reference) is not None
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    for chunks in (learner.parallel_chunks, learner.part(Reference).held.chunks):
        (found,) = learner.passes.logprobs(chunks, [micro], 0.8)
        assert found.tolist() == pytest.approx(micro.behavior.tolist(), abs=1e-5)
    assert learner.step(batch)["mismatch_kl"] < 1e-8
    unmasked = build_learner(learner.shape, make_recipe(model), Unsampled())
    unmasked.load_base()
    (found,) = unmasked.passes.logprobs(unmasked.parallel_chunks, [micro], 0.8)
    assert (found - micro.behavior).abs().max() > 1.0


CUTS = {
    "top_p": {"top_p": 0.9, "top_k": VOCABULARY},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.05, "top_k": 4096},
    "all": {"top_p": 0.9, "top_k": 20, "min_p": 0.05},
}


def stream_truncated(
    url: str, temperature: float, cut: dict[str, float], vocabulary: int
) -> list[ScoredSequence]:
    """Responses as a run samples them: streamed, with their kept sets."""
    source = random.Random(round(10 * temperature))
    sampling = SamplingParams(temperature, 24, (10 * VOCABULARY,), **cut)
    prompts = [source.choices(range(2, vocabulary), k=length) for length in (3, 9, 17, 30)]
    prefixes = [Prefix(f"cut-{source.random()}-{i}", prompt, 40) for i, prompt in enumerate(prompts)]
    body = generate_body(prefixes, sampling, salt="cut", columns=(KeptSets(),))
    found: dict[str, list[Segment]] = {}

    async def receive() -> None:
        confirmations = {prefix.request_id: Confirmation(0, columns=(KeptSets(),)) for prefix in prefixes}
        found.update({prefix.request_id: [] for prefix in prefixes})
        async with new_session() as session:
            async for chunk in stream(session, url, body, (KeptSets(),)):
                found[chunk.request_id] += confirmations[chunk.request_id].feed(chunk)

    # A server joins the chunks that a busy client has not read yet, and responses of one chunk show no
    # joining.
    while not any(len(segments) > 1 for segments in found.values()):
        asyncio.run(receive())
    sequences = []
    for i, (prefix, segments) in enumerate(zip(prefixes, found.values(), strict=True)):
        tokens = [token for segment in segments for token in segment.tokens]
        logprobs = [logprob for segment in segments for logprob in segment.behavior_logprobs]
        kept, size = b"".join(segment.columns[KEPT_SETS] for segment in segments), len(tokens)
        assert num_kept_sets(kept) == size
        sequences.append(
            ScoredSequence(
                *(str(i), prefix.tokens, tokens, logprobs, [0] * size, [False] * size, 1.0, 1.0),
                columns={KEPT_SETS: kept},
            )
        )
    return sequences


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
@pytest.mark.parametrize("cut", CUTS)
def test_the_trainer_finds_the_log_probs_over_the_tokens_that_the_server_kept(
    shared_engine: tuple[str, list[Path]], cut: str
):
    url, (model, _) = shared_engine
    batch = Batch(0, 0.9, stream_truncated(url, 0.9, CUTS[cut], VOCABULARY))
    learner = make_learner(model)
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1, columns=COLUMNS)
    (found,) = learner.passes.logprobs(learner.parallel_chunks, [micro], 0.9)
    assert found.tolist() == pytest.approx(micro.behavior.tolist(), abs=1e-5)
    (whole,) = learner.passes.whole_logprobs(learner.parallel_chunks, [micro], 0.9)
    # What a cut left out is what a run without kept sets would weigh wrongly.
    assert (found - whole).min() > -1e-5 and (found - whole).max() > 1e-3
    metrics = learner.accumulate(MiniBatch([micro], 0.9))
    assert metrics["mismatch_kl"] < 1e-8 and metrics["max_importance_ratio"] == pytest.approx(1.0, abs=1e-4)


def test_kept_sets_have_none_of_the_tokens_that_are_never_sampled(masked_engine: tuple[str, Path]):
    url, model = masked_engine
    batch = Batch(0, 0.8, stream_truncated(url, 0.8, CUTS["all"], NEVER[0]))
    learner = make_learner(model, algorithm={"kl": {"coefficient": 0.1}}, rollout={"top_p": 0.9, "top_k": 20})
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1, columns=COLUMNS)
    assert not set(micro.terms[KEPT_SETS].tokens.tolist()) & set(NEVER)
    assert learner.part(Reference) is not None
    (found,) = learner.passes.logprobs(learner.parallel_chunks, [micro], 0.8)
    assert found.tolist() == pytest.approx(micro.behavior.tolist(), abs=1e-5)
    assert learner.step(batch)["mismatch_kl"] < 1e-8
