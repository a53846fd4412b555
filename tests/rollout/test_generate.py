"""One group's trajectories over streams that end early: rounds, aborts, moves between servers; and the
lengths that are expected of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import STOP, FakeEngine
from fakes.fleets import fleet_of_two, generating
from fakes.records import make_task, reopen
from fakes.stage import stage

from asyncrl.model.column_bytes import KEPT_SETS, pack_kept_set
from asyncrl.records import Finish, Observed, PublishOutcome, SamplingParams, Segment
from asyncrl.rollout.expected_load import REFRESHED_EVERY, WINDOW, ResponseLengths
from asyncrl.rollout.generate import GenerationFailed
from asyncrl.rollout.request_rules import OpenTurns, RequestRules
from asyncrl.serving.publication import Publication
from asyncrl.serving.sglang.columns import KeptSets

KEEPS_SETS = RequestRules(columns=(KeptSets(),))
TWELVE = SamplingParams(1.0, 12, (STOP,))


async def test_a_trajectory_longer_than_a_round_is_parked_and_resumed_from_its_prefix(tmp_path: Path) -> None:
    # The engine ends a request at its limit, here 3 tokens a round; a trajectory may have 8.
    engine, sampling = FakeEngine(num_tokens=100, chunk_tokens=2), SamplingParams(1.0, 8, (STOP,))
    async with generating(tmp_path, sampling, engine=engine, limits={"tokens_per_round": 3}) as run:
        ended = await run.ended()
        assert len(ended) == 2 and all(t.finish is Finish.LENGTH for t in ended)
        assert [t.num_response_tokens() for t in ended] == [8, 8]
        limits = [[p["max_new_tokens"] for p in body["sampling_params"]] for body in run.engine.bodies]
        assert limits == [[3, 3], [3, 3], [2, 2]]
        # The prompt has 3 tokens.
        lengths = [[len(ids) for ids in body["input_ids"]] for body in run.engine.bodies]
        assert lengths == [[3, 3], [6, 6], [9, 9]]
        assert run.fleet.router.num_in_flight == 0


async def test_truncated_sampling_journals_kept_sets_through_rounds_and_a_restart(tmp_path: Path) -> None:
    engine = FakeEngine(num_tokens=100, chunk_tokens=2)
    sampling = SamplingParams(1.0, 8, (STOP,), top_p=0.9, top_k=20)
    asked: dict[str, Any] = {"limits": {"tokens_per_round": 3}, "rules": KEEPS_SETS}
    async with generating(tmp_path, sampling, engine=engine, **asked) as run:
        ended = await run.ended()
        kept = pack_kept_set(10, [10, 110]) * 8
        for trajectory in ended:
            (segment,) = trajectory.segments
            assert (segment.tokens, segment.behavior_logprobs) == ([10] * 8, [-0.25] * 8)
            assert segment.columns == {KEPT_SETS: kept}
        run.queue.journal.barrier_blocking()
        (name, *_) = (trajectory.trajectory_id for trajectory in ended)
        rows = run.queue.journal.read(
            "SELECT kept FROM kept_sets WHERE trajectory_id = ? ORDER BY position", (name,)
        )
        assert b"".join(part for (part,) in rows) == kept
        again = reopen(run.queue, tmp_path)
        (group,) = again.live.values()
        assert [t.segments for t in group.trajectories] == [t.segments for t in ended]


async def test_a_server_that_says_no_kept_sets_is_a_fault_and_trains_nothing(tmp_path: Path) -> None:
    engine, sampling = FakeEngine(num_tokens=4, chunk_tokens=2), SamplingParams(1.0, 8, (STOP,), top_k=20)
    engine.sends_kept_sets = False
    async with generating(tmp_path, sampling, engine=engine, max_retries=0, rules=KEEPS_SETS) as run:
        with pytest.raises(GenerationFailed, match="2 tokens came with 0 kept sets"):
            await run.ended()
        assert run.group.num_tokens() == 0


async def test_a_turn_ends_its_stream_and_leaves_its_trajectory_open_for_an_observation(
    tmp_path: Path,
) -> None:
    engine, turns = FakeEngine(num_tokens=5, chunk_tokens=2), OpenTurns()
    async with generating(tmp_path, TWELVE, engine=engine, limits={"max_turn_tokens": 4}, turns=turns) as run:
        first, second = run.group.trajectories
        assert await run.ended(first) == [first]
        assert (first.finish, first.turn_finish, second.segments) == (None, Finish.LENGTH, [])
        run.queue.observe(run.group, first, Observed([8] * 10, "{}"))
        assert await run.ended(first) == [first]
        # Twelve sampled tokens in all: the third turn is cut by them, not by its own limit.
        run.queue.observe(run.group, first, Observed([8], "{}"))
        run.engine.num_tokens = 100
        assert await run.ended(first) == [first]
        assert [len(turn) for turn in first.turns()] == [4, 4, 4]
        lengths = [[len(ids) for ids in body["input_ids"]] for body in run.engine.bodies]
        assert lengths == [[3], [17], [22]]
        assert await run.ended(second) == [second]


async def test_a_turn_that_a_crash_cut_off_from_its_end_has_ended(tmp_path: Path) -> None:
    async with generating(tmp_path, TWELVE, turns=OpenTurns()) as run:
        first = run.group.trajectories[0]
        run.queue.append(run.group, first, [Segment(0, [7, STOP], [-1.0, -1.0])], None)
        assert await run.ended(first) == [first]
        assert first.turn_finish is Finish.STOP and not run.engine.bodies


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_later_turn_may_read_the_cache_of_the_version_that_began_its_trajectory(
    tmp_path: Path, is_kept: bool
) -> None:
    async with generating(tmp_path, TWELVE, version=1, turns=OpenTurns(keeps_cached=is_kept)) as run:
        first, second = run.group.trajectories
        run.queue.append(run.group, first, [Segment(0, [7], [-1.0])], None)
        for trajectory in (first, second):
            assert await run.ended(trajectory) == [trajectory]
        salts = [body["cache_salt"][0] for body in run.engine.bodies]
        assert [salt[-2:] for salt in salts] == [("v0" if is_kept else "v1"), "v1"]


@pytest.mark.parametrize(("limit", "finish"), [(5, Finish.LENGTH), (64, Finish.STOP)])
async def test_a_trajectory_aborted_with_its_last_token_has_ended(
    tmp_path: Path, limit: int, finish: Finish
) -> None:
    # The engine writes 5 tokens, the last one the stop token where the limit is higher.
    engine = FakeEngine(num_tokens=5)
    engine.ends_in_aborts = True
    async with generating(tmp_path, SamplingParams(1.0, limit, (STOP,)), engine=engine) as run:
        ended = await run.ended()
        assert [(t.num_response_tokens(), t.finish) for t in ended] == [(5, finish)] * 2
        # Nothing is asked for after a last token.
        assert len(run.engine.bodies) == 1


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


async def test_trajectories_that_stream_by_themselves_share_their_prompt_on_a_server(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.work
        (server, _) = scene.fleet.members.servers.values()
        group = scene.queue.admit(make_task(2))
        load = scene.generator.load
        # A quarter of 1000 each; the rest of the group is none of theirs.
        assert [load.tokens(group, [t]) for t in group.trajectories] == [3 + 250, 3 + 250]
        for trajectory in group.trajectories:
            load.begin(server, group, 3, [load.held_by(trajectory)])
        assert (server.held_tokens, server.expected_tokens) == (3, 3 + 2 * 250)
        for left in (3, 0):
            load.end_prompt(server, group, 3)
            assert server.held_tokens == left


def lengths_of(*ended: int) -> ResponseLengths:
    found = ResponseLengths()
    for length in ended:
        found.add(length)
    return found


def test_before_any_response_ended_a_quarter_of_the_limit_is_expected() -> None:
    assert lengths_of().expected(0, limit_tokens=1000) == 250
    assert lengths_of(10).expected(0, limit_tokens=1000) == 250


def test_a_new_response_is_expected_to_have_the_mean_and_one_that_is_longer_the_mean_of_longer_ones() -> None:
    known = lengths_of(*(8 * [100]), *(8 * [300]))
    assert known.expected(0, limit_tokens=1000) == 200
    assert known.expected(100, limit_tokens=1000) == 300
    assert known.expected(0, limit_tokens=150) == 150


def test_a_response_longer_than_almost_all_is_expected_to_become_twice_as_long() -> None:
    known = lengths_of(*(20 * [100]), 5000)
    assert known.expected(400, limit_tokens=1000) == 800
    assert known.expected(800, limit_tokens=1000) == 1000
    assert known.expected(1000, limit_tokens=1000) == 1000


def test_only_recent_responses_count() -> None:
    known = lengths_of(*(50 * [1000]), *((WINDOW + REFRESHED_EVERY) * [10]))
    assert known.expected(0, limit_tokens=2000) == 10
