"""One group's trajectories over streams that end early: rounds, aborts, moves between servers."""

import asyncio
from pathlib import Path

import pytest
from fakes.engine import STOP, FakeEngine
from fakes.fleets import fleet_of_two
from fakes.process_owner import FakeProcesses
from fakes.records import make_queue, make_task
from fakes.stage import stage

from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.records import Finish, PublishOutcome, SamplingParams
from asyncrl.rollout.generate import Generator
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.fleet_settings import FleetSettings
from asyncrl.serving.publication import Publication
from asyncrl.serving.sglang.http import new_session


async def test_a_trajectory_longer_than_a_round_is_parked_and_resumed_from_its_prefix(tmp_path: Path) -> None:
    # The engine ends a request at its limit, here 3 tokens a round; a trajectory may have 8.
    async with FakeEngine(num_tokens=100, chunk_tokens=2) as engine, new_session() as session:
        engine.version = "0"
        queue, waits = make_queue(tmp_path), Waits()
        queue.announce(0)
        fleet = Fleet(
            [engine.url],
            FleetSettings(max_running_requests=8),
            session=session,
            waits=waits,
            processes=FakeProcesses(),
        )
        fleet.members.serve_fixed(0)
        sampling = SamplingParams(1.0, 8, (STOP,))
        generator = Generator(
            queue, fleet, waits, sampling, 64, 1, "run", state=RunPhase(waits), tokens_per_round=3
        )
        group = queue.admit(make_task())
        ended = [trajectory async for trajectory in generator.run(group)]
        assert len(ended) == 2 and all(t.finish is Finish.LENGTH for t in ended)
        assert [t.num_response_tokens() for t in ended] == [8, 8]
        limits = [[p["max_new_tokens"] for p in body["sampling_params"]] for body in engine.bodies]
        assert limits == [[3, 3], [3, 3], [2, 2]]
        # The prompt has 3 tokens.
        lengths = [[len(ids) for ids in body["input_ids"]] for body in engine.bodies]
        assert lengths == [[3, 3], [6, 6], [9, 9]]
        assert fleet.router.num_in_flight == 0


@pytest.mark.parametrize(("limit", "finish"), [(5, Finish.LENGTH), (64, Finish.STOP)])
async def test_a_trajectory_aborted_with_its_last_token_has_ended(
    tmp_path: Path, limit: int, finish: Finish
) -> None:
    # The engine writes 5 tokens, the last one the stop token where the limit is higher.
    async with FakeEngine(num_tokens=5) as engine, new_session() as session:
        engine.version, engine.ends_in_aborts = "0", True
        queue, waits = make_queue(tmp_path), Waits()
        queue.announce(0)
        fleet = Fleet(
            [engine.url],
            FleetSettings(max_running_requests=8),
            session=session,
            waits=waits,
            processes=FakeProcesses(),
        )
        fleet.members.serve_fixed(0)
        sampling = SamplingParams(1.0, limit, (STOP,))
        generator = Generator(queue, fleet, waits, sampling, 64, 1, "run", state=RunPhase(waits))
        group = queue.admit(make_task())
        ended = [trajectory async for trajectory in generator.run(group)]
        assert [(t.num_response_tokens(), t.finish) for t in ended] == [(5, finish)] * 2
        # Nothing is asked for after a last token.
        assert len(engine.bodies) == 1


async def test_the_server_with_the_prefix_is_preferred_unless_it_is_busier_by_more_than_the_group() -> None:
    async with fleet_of_two() as fleet:
        first, second = fleet.members.servers.values()
        fleet.router.acquire(second, 4)
        assert fleet.router.pick(4) is first
        assert fleet.router.pick(4, before=second) is second
        fleet.router.acquire(second, 1)
        assert fleet.router.pick(4, before=second) is first


async def test_a_trajectory_with_tokens_of_a_version_waits_for_a_server_announced_to_have_it() -> None:
    async with fleet_of_two(version=1) as fleet:
        first, second = fleet.members.servers.values()
        assert fleet.router.pick(1, at_least=1) is first
        assert fleet.router.pick(1, at_least=2) is None
        # Both may hold version 2; only of the second one the trainer said so.
        await fleet.announce(Publication(2, Path("v2"), {}), {second.url: PublishOutcome(True, 0.0)})
        assert fleet.router.pick(1, at_least=2) is second


async def test_a_server_is_told_what_a_group_holds_and_will_hold_until_it_has_ended(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        engine, _ = await scene.stream_some()
        (server,) = (s for s in scene.fleet.members.servers.values() if s.num_running)
        streamed = server.num_tokens
        # Two trajectories that share a prompt of 3 tokens.
        assert server.held_tokens == 3 + streamed
        # A quarter of 1000 tokens is expected of each.
        assert server.expected_tokens == 3 + 2 * 250
        engine.release()
        while server.num_tokens < 2 * 300:
            await asyncio.sleep(0)
        # Over 250 tokens a response is expected to double.
        assert server.expected_tokens >= 3 + 2 * 500
        await scene.work
        assert (server.held_tokens, server.expected_tokens, server.num_running) == (0, 0, 0)
