"""Routes of streamed tokens: none is missing or out of place, however streams end and whoever goes on."""

from pathlib import Path
from typing import Any

import pytest
from fakes.engine import ROW_BYTES, STOP, FakeEngine, route
from fakes.fleets import generating
from fakes.records import reopen

from asyncrl.model.column_bytes import ROUTES
from asyncrl.records import Observed, SamplingParams, ScoredSequence, Segment, Trajectory
from asyncrl.rollout.generate import GenerationFailed
from asyncrl.rollout.request_rules import OpenTurns, RequestRules
from asyncrl.serving.sglang.columns import Routes

RULES = RequestRules(columns=(Routes(ROW_BYTES),))


def assert_routed(trajectory: Trajectory) -> None:
    """Each position in front of the last sampled token has its own row, once."""
    sequence = ScoredSequence.of(trajectory, reward=0.0, advantage=0.0)
    tokens = sequence.prompt_tokens + sequence.response_tokens
    assert sequence.num_inputs() == len(tokens) - 1 == trajectory.num_computed() > 0
    assert sequence.columns[ROUTES] == b"".join(route(tokens, place) for place in range(len(tokens) - 1))


@pytest.mark.parametrize("confirms_chunks", [True, False])
async def test_streams_that_break_abort_or_end_a_round_leave_no_token_without_its_experts(
    tmp_path: Path, confirms_chunks: bool
) -> None:
    engine = FakeEngine(num_tokens=100, chunk_tokens=2, confirms_chunks=confirms_chunks)
    grown = list[Trajectory]()

    def disturb(trajectory: Trajectory) -> None:
        """After the first confirmed tokens the stream breaks; later its requests are aborted."""
        grown.append(trajectory)
        if len(grown) == 1:
            engine.break_streams = 1
        elif len(grown) == 4:
            engine.aborted.update(engine.bodies[-1]["rid"])

    sampling, limits = SamplingParams(1.0, 16, (STOP,)), {"tokens_per_round": 5}
    asked: dict[str, Any] = {"max_retries": 9, "rules": RULES, "grown": disturb}
    async with generating(tmp_path, sampling, engine=engine, limits=limits, **asked) as run:
        ended = await run.ended()
        assert len(ended) == 2 and run.engine.aborted and run.engine.break_streams == 0
        for trajectory in ended:
            assert trajectory.num_response_tokens() == 16
            assert_routed(trajectory)
        # What is known is asked for no second time: the prompt has three tokens.
        assert {p["custom_params"]["asyncrl_first_row"] for p in run.engine.bodies[0]["sampling_params"]} == {
            0
        }
        for body in run.engine.bodies:
            for tokens, params in zip(body["input_ids"], body["sampling_params"], strict=True):
                first = params["custom_params"]["asyncrl_first_row"]
                assert first == (len(tokens) - 1 if len(tokens) > 3 else 0)
        run.queue.journal.barrier_blocking()
        (again,) = reopen(run.queue, tmp_path).live.values()
        assert [t.segments for t in again.trajectories] == [t.segments for t in run.group.trajectories]


async def test_the_first_chunk_of_a_turn_has_the_experts_of_what_was_observed(tmp_path: Path) -> None:
    engine, sampling = FakeEngine(num_tokens=5, chunk_tokens=2), SamplingParams(1.0, 12, (STOP,))
    asked: dict[str, Any] = {"limits": {"max_turn_tokens": 4}, "rules": RULES, "turns": OpenTurns()}
    async with generating(tmp_path, sampling, engine=engine, **asked) as run:
        first, _ = run.group.trajectories
        assert await run.ended(first) == [first]
        assert_routed(first)
        run.queue.observe(run.group, first, Observed([8] * 10, "{}"))
        assert await run.ended(first) == [first]
        assert_routed(first)
        _, _, second = first.segments
        assert isinstance(second, Segment)
        # The last token of the first turn and nine that were observed; the tenth predicts the turn's first.
        assert len(second.context[ROUTES]) == 10 * ROW_BYTES and len(second.columns[ROUTES]) == 4 * ROW_BYTES


async def test_a_server_that_says_no_experts_is_a_fault_and_trains_nothing(tmp_path: Path) -> None:
    engine, sampling = FakeEngine(num_tokens=4, chunk_tokens=2), SamplingParams(1.0, 8, (STOP,))
    engine.sends_routes = False
    async with generating(tmp_path, sampling, engine=engine, max_retries=0, rules=RULES) as run:
        with pytest.raises(GenerationFailed, match="2 tokens came with 0 rows of routes, expected 4 "):
            await run.ended()
        assert run.group.num_tokens() == 0
