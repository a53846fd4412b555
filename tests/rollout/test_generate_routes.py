"""Routes of streamed tokens: none is missing or out of place, however streams end and whoever goes on."""

from pathlib import Path

import pytest
from fakes.engine import ROW_BYTES, STOP, FakeEngine, route
from fakes.fleets import fleet_on
from fakes.records import make_queue, make_task, reopen

from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.records import Observed, SamplingParams, ScoredSequence, Segment, Trajectory
from asyncrl.rollout.generate import GenerationFailed, Generator
from asyncrl.rollout.limits import Limits
from asyncrl.rollout.request_rules import RequestRules
from asyncrl.rollout.turns import OpenTurns
from asyncrl.serving.sglang.http import new_session


def assert_routed(trajectory: Trajectory) -> None:
    """Each position in front of the last sampled token has its own row, once."""
    sequence = ScoredSequence.of(trajectory, reward=0.0, advantage=0.0)
    tokens = sequence.prompt_tokens + sequence.response_tokens
    assert sequence.num_inputs() == len(tokens) - 1 == trajectory.num_routed() > 0
    assert sequence.routes == b"".join(route(tokens, place) for place in range(len(tokens) - 1))


@pytest.mark.parametrize("confirms_chunks", [True, False])
async def test_streams_that_break_abort_or_end_a_round_leave_no_token_without_its_experts(
    tmp_path: Path, confirms_chunks: bool
) -> None:
    async with (
        FakeEngine(num_tokens=100, chunk_tokens=2, confirms_chunks=confirms_chunks) as engine,
        new_session() as session,
    ):
        engine.version, queue, waits = "0", make_queue(tmp_path), Waits()
        queue.announce(0)

        grown = list[Trajectory]()

        def disturb(trajectory: Trajectory) -> None:
            """After the first confirmed tokens the stream breaks; later its requests are aborted."""
            grown.append(trajectory)
            if len(grown) == 1:
                engine.break_streams = 1
            elif len(grown) == 4:
                engine.aborted.update(engine.bodies[-1]["rid"])

        generator = Generator(
            queue,
            fleet_on(engine, session, waits),
            waits,
            Limits(SamplingParams(1.0, 16, (STOP,)), 64, tokens_per_round=5),
            9,
            "run",
            state=RunPhase(waits),
            rules=RequestRules(row_bytes=ROW_BYTES),
            grown=disturb,
        )
        group = queue.admit(make_task())
        ended = [trajectory async for trajectory in generator.run(group)]
        assert len(ended) == 2 and engine.aborted and engine.break_streams == 0
        for trajectory in ended:
            assert trajectory.num_response_tokens() == 16
            assert_routed(trajectory)
        # What is known is asked for no second time: the prompt has three tokens.
        assert {p["custom_params"]["asyncrl_first_row"] for p in engine.bodies[0]["sampling_params"]} == {0}
        for body in engine.bodies:
            for tokens, params in zip(body["input_ids"], body["sampling_params"], strict=True):
                first = params["custom_params"]["asyncrl_first_row"]
                assert first == (len(tokens) - 1 if len(tokens) > 3 else 0)
        queue.journal.barrier_blocking()
        (again,) = reopen(queue, tmp_path).live.values()
        assert [t.segments for t in again.trajectories] == [t.segments for t in group.trajectories]


async def test_the_first_chunk_of_a_turn_has_the_experts_of_what_was_observed(tmp_path: Path) -> None:
    async with FakeEngine(num_tokens=5, chunk_tokens=2) as engine, new_session() as session:
        engine.version, queue, waits = "0", make_queue(tmp_path), Waits()
        queue.announce(0)
        generator = Generator(
            queue,
            fleet_on(engine, session, waits),
            waits,
            Limits(SamplingParams(1.0, 12, (STOP,)), 64, max_turn_tokens=4),
            1,
            "run",
            state=RunPhase(waits),
            rules=RequestRules(row_bytes=ROW_BYTES),
            turns=OpenTurns(),
        )
        group = queue.admit(make_task())
        first, _ = group.trajectories
        assert [t async for t in generator.run(group, [first])] == [first]
        assert_routed(first)
        queue.observe(group, first, Observed([8] * 10, "{}"))
        assert [t async for t in generator.run(group, [first])] == [first]
        assert_routed(first)
        _, _, second = first.segments
        assert isinstance(second, Segment)
        # The last token of the first turn and nine that were observed; the tenth predicts the turn's first.
        assert len(second.context_routes) == 10 * ROW_BYTES and len(second.routes) == 4 * ROW_BYTES


async def test_a_server_that_says_no_experts_is_a_fault_and_trains_nothing(tmp_path: Path) -> None:
    async with FakeEngine(num_tokens=4, chunk_tokens=2) as engine, new_session() as session:
        engine.version, engine.sends_routes = "0", False
        queue, waits = make_queue(tmp_path), Waits()
        queue.announce(0)
        generator = Generator(
            queue,
            fleet_on(engine, session, waits),
            waits,
            Limits(SamplingParams(1.0, 8, (STOP,)), 64),
            0,
            "run",
            state=RunPhase(waits),
            rules=RequestRules(row_bytes=ROW_BYTES),
        )
        group = queue.admit(make_task())
        with pytest.raises(GenerationFailed, match="2 tokens came with 0 bytes of routes, expected 4 rows"):
            async for _ in generator.run(group):
                pass
        assert group.num_tokens() == 0
