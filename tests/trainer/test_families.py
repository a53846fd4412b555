"""Each family on a real server: the trainer finds the log-probs that it sends, also after each publish.

tests/trainer/network/test_families.py compares the families with transformers, test_family_layouts.py their
layouts.
"""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from fakes.file_service import running_files
from fakes.learners import make_learner
from families.known import tiny, write_served
from families.properties import of_each_family
from serving.engine.servers import new_session, running_server
from trainer.test_engine_logprobs import sample

from asyncrl.records import Batch
from asyncrl.serving.publication import find_load
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.publishing.transports import publisher_of
from asyncrl.trainer.step.learner import Learner

TEMPERATURE = 0.6
LIMIT = 1e-4
TRANSPORTS = ("disk", "http", "distributed")
VARIANTS = {
    "Qwen3ForCausalLM": "yarn",
    "LlamaForCausalLM": "llama3",
    "Qwen2ForCausalLM": "linear",
    # Full layers alone are scaled.
    "Olmo3ForCausalLM": "yarn",
    "Phi3ForCausalLM": "longrope",
    # Latent attention without short vectors of queries.
    "DeepseekV3ForCausalLM": "whole queries",
}
"""Rotary positions of other kinds."""


def largest_difference(learner: Learner, batch: Batch) -> float:
    """Between the server's log-probs and the trainer's."""
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    (found,) = learner.passes.logprobs(learner.parallel_chunks, [micro], batch.temperature)
    return (found - micro.behavior).abs().max().item()


def publish(learner: Learner, version: int, transport: str, *, model: Path, run: Path, url: str) -> None:
    """Its digests are confirmed, or this fails."""
    with running_files(run) as files:
        publisher = publisher_of(
            transport,
            run / "publications",
            base=model,
            # Several broadcasts.
            bucket_bytes=100_000,
            files=find_load(shared_disk=transport != "http", service_url=lambda: files, run_folder=run),
            failed=pytest.fail,
        )
        publication = publisher.prepare(version, learner.model)
        (outcome,) = publisher.install(publication, learner.model, [url]).values()
        assert outcome.is_installed, (transport, outcome.detail)
        publisher.close()


async def flush(url: str) -> None:
    """Unlike a run's, requests of `sample` do not name their version: they would find old prefixes."""
    async with new_session() as session, session.post(f"{url}/flush_cache") as reply:
        assert reply.status == 200


def sampled(url: str, version: int) -> Batch:
    """A batch to learn from: to write it, or else not to. A policy that always learns to write what it wrote
    is soon certain of it, and moves no more."""
    advantage = (-1.0) ** version
    sequences = [dataclasses.replace(one, advantage=advantage) for one in sample(url, TEMPERATURE)]
    return Batch(version, TEMPERATURE, sequences)


def assert_agreement(architecture: str, variant: str | None, folder: Path) -> None:
    model = write_served(folder / "model", architecture, variant=variant)
    learner = make_learner(model, trainer={"learning_rate": 1e-2, **tiny(architecture).trainer})
    with running_server(model, folder / "server.log") as (url, _):
        batch = sampled(url, 0)
        assert largest_difference(learner, batch) < LIMIT
        for version, transport in enumerate(TRANSPORTS, start=1):
            before = batch
            learner.step(before)
            publish(learner, version, transport, model=model, run=folder / "run", url=url)
            asyncio.run(flush(url))
            batch = sampled(url, version)
            assert largest_difference(learner, batch) < LIMIT, transport
            assert largest_difference(learner, before) > 1e-3, "the step changed too little"


@of_each_family("server", "publish")
def test_server_and_trainer_agree_after_a_publish_by_each_transport(
    architecture: str, tmp_path: Path
) -> None:
    assert_agreement(architecture, None, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", VARIANTS)
def test_servers_rotate_as_the_trainer_does(architecture: str, tmp_path: Path) -> None:
    assert_agreement(architecture, VARIANTS[architecture], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", [pytest.param("disk", marks=pytest.mark.slow), "distributed"])
def test_matrices_that_a_server_keeps_in_one_arrive_in_parts(transport: str, tmp_path: Path) -> None:
    """q_a_proj and kv_a_proj_with_mqa, in buckets of their own; digests confirm each version."""
    model = write_served(tmp_path / "model", "DeepseekV3ForCausalLM")
    learner = make_learner(model, trainer={"learning_rate": 1e-2})
    publisher = publisher_of(
        transport, tmp_path / "publications", base=model, bucket_bytes=20_000, failed=pytest.fail
    )
    with running_server(model, tmp_path / "server.log") as (url, _):
        for version in (1, 2):
            learner.step(sampled(url, version))
            publication = publisher.prepare(version, learner.model)
            (outcome,) = publisher.install(publication, learner.model, [url]).values()
            assert outcome.is_installed, outcome.detail
            asyncio.run(flush(url))
            assert largest_difference(learner, sampled(url, version)) < LIMIT
    publisher.close()
