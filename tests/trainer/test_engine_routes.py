"""The experts that a real server took, with its tokens, and a trainer that takes the same."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.learners import make_learner
from fakes.routed import VOCABULARY, continue_routed, make_prompts, sample_routed, write_experts
from fakes.sequences import without_column
from serving.engine.servers import new_session, post, running_server

from asyncrl.model.column_bytes import ROUTES
from asyncrl.recipe.server_options import ROUTED_EXPERTS
from asyncrl.records import Batch, Observed, SamplingParams, ScoredSequence, Trajectory
from asyncrl.trainer.parts.served_columns import RoutingReplay
from asyncrl.trainer.step.learner import Learner

BFLOAT16 = {"model": {"dtype": "bfloat16"}}


@pytest.fixture(
    scope="module",
    params=["Qwen3MoeForCausalLM", pytest.param("Glm4MoeForCausalLM", marks=pytest.mark.exhaustive)],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """One in bfloat16 that says the experts of tokens."""
    root = tmp_path_factory.mktemp("routes")
    model = write_experts(root / "model", request.param)
    with running_server(model, root / "server.log", ROUTED_EXPERTS, dtype="bfloat16") as (url, _):
        yield url, model


@pytest.fixture(scope="module")
def replaying(server: tuple[str, Path]) -> Learner:
    return make_learner(server[1], **BFLOAT16, algorithm={"routing_replay": "rollout"})


def measure(learner: Learner, sequences: list[ScoredSequence]) -> dict[str, float]:
    assert learner.part(RoutingReplay) is not None
    return learner.measure(Batch(0, 1.0, sequences)) | learner.part(RoutingReplay).report()


def test_replay_takes_the_experts_of_the_server_and_with_them_most_of_the_mismatch(
    server: tuple[str, Path], replaying: Learner
):
    url, model = server
    # Stream intervals of 16 tokens: several chunks each, and prompts that others begin with.
    prompts = make_prompts(1, 6)
    sequences = sample_routed(url, model, [*prompts, prompts[0], prompts[0]], num_tokens=40)
    found = measure(replaying, sequences)
    # Rows that were out of place by one token or layer would differ in nine of ten choices.
    assert found["routing_mismatch"] < 0.1
    free = make_learner(model, **BFLOAT16)
    plain = free.measure(Batch(0, 1.0, [without_column(one, ROUTES) for one in sequences]))
    # 1/12 to 1/30 over eight batches of Qwen3-MoE (tests/benchmarks/routing_bench.py).
    assert found["mismatch_kl"] < 0.3 * plain["mismatch_kl"]
    metrics = replaying.step(Batch(0, 1.0, sequences))
    assert metrics["optimizer_steps"] == 1 and metrics["routing_mismatch"] < 0.1
    replaying.load_base()


@pytest.mark.slow
def test_groups_of_experts_are_replayed_and_layers_without_experts_change_nothing(tmp_path: Path):
    model = write_experts(tmp_path / "model", "DeepseekV3ForCausalLM")
    with running_server(model, tmp_path / "server.log", ROUTED_EXPERTS, dtype="bfloat16") as (url, _):
        sequences = sample_routed(url, model, make_prompts(1, 16), num_tokens=40)
    learner = make_learner(model, **BFLOAT16, algorithm={"routing_replay": "rollout"})
    found = measure(learner, sequences)
    assert found["routing_mismatch"] < 0.1
    free = make_learner(model, **BFLOAT16)
    plain = free.measure(Batch(0, 1.0, [without_column(one, ROUTES) for one in sequences]))
    assert found["mismatch_kl"] < 0.5 * plain["mismatch_kl"]


def test_a_response_that_goes_on_from_its_prefix_has_the_experts_of_each_token_once(
    server: tuple[str, Path], replaying: Learner
):
    url, model = server
    trajectories = [Trajectory(str(i), tuple(prompt)) for i, prompt in enumerate(make_prompts(2, 4))]
    asyncio.run(
        continue_routed(url, model, trajectories, SamplingParams(1.0, 20, (10 * VOCABULARY,)), salt="a")
    )
    first = [bytes(one.segments[0].columns[ROUTES]) for one in trajectories]
    # As after a crash, with an empty cache; half of them with an observation in between.
    for one in trajectories[2:]:
        one.turn_finish = None
        one.observe(Observed([5, 6, 7]))
    asyncio.run(
        continue_routed(url, model, trajectories, SamplingParams(1.0, 20, (10 * VOCABULARY,)), salt="b")
    )
    assert [
        bytes(one.segments[0].columns[ROUTES][: len(rows)])
        for one, rows in zip(trajectories, first, strict=True)
    ] == first
    sequences = [ScoredSequence.of(one, reward=1.0, advantage=1.0) for one in trajectories]
    assert [len(one.response_tokens) for one in sequences] == [40, 40, 43, 43]
    assert measure(replaying, sequences)["routing_mismatch"] < 0.1


def test_a_request_that_asks_for_none_gets_none_and_the_last_chunk_all_of_a_short_one(
    server: tuple[str, Path],
):
    url, _ = server

    async def send() -> tuple[dict, dict]:
        settings = {"temperature": 1.0, "max_new_tokens": 2}
        async with new_session() as session:
            plain = await post(
                session, f"{url}/generate", {"input_ids": [1, 2, 3], "sampling_params": settings}
            )
            settings = settings | {"custom_params": {"asyncrl_first_row": 1}}
            body = {"input_ids": [1, 2, 3], "sampling_params": settings, "return_routed_experts": True}
            return plain, await post(session, f"{url}/generate", body)

    plain, routed = asyncio.run(send())
    assert "routed_experts" not in plain["meta_info"]
    # Positions 1, 2 and 3: the fifth token needs none. Four layers of four experts.
    assert len(base64.b64decode(routed["meta_info"]["routed_experts"])) == 3 * 16
