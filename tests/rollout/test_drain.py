"""Draining before a publish, and streams that end before their trajectories do: no token is confirmed twice,
nothing begins in a drain, and no wait is endless."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import TAKEN
from fakes.records import make_task
from fakes.stage import StreamingStage, stage

from asyncrl.errors import Superseded
from asyncrl.records import DropReason, Finish, Segment
from asyncrl.replay.group import GroupState
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.request_rules import RequestRules
from asyncrl.serving.publication import Publication


@pytest.fixture
async def found(tmp_path: Path) -> AsyncIterator[StreamingStage]:
    async with stage(tmp_path) as found:
        yield found


def start_drain(found: StreamingStage) -> "asyncio.Task[None]":
    """Of a trainer that has a batch and made version 1 of it."""
    found.fleet.hand_wire_to_trainer()
    drain = Drain(found.queue, found.fleet, found.generator, found.waits)
    return asyncio.create_task(drain.run(1))


async def let_all_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def announce(found: StreamingStage, folder: Path) -> None:
    found.queue.num_steps_taken = 1
    found.queue.announce(1)
    publication = Publication(1, folder, {"a": "1" * 16})
    publication.write_manifest()
    await found.fleet.announce(publication, dict.fromkeys(found.fleet.members.servers, TAKEN))


async def test_a_drain_waits_for_what_streams_and_begins_nothing_until_the_announcement(
    found: StreamingStage, tmp_path: Path
) -> None:
    here, _ = await found.stream_some()
    drain = start_drain(found)
    await asyncio.sleep(0)
    assert found.fleet.router.pick(2, is_new=True) is None and found.fleet.router.pick(2) is not None
    assert not drain.done()
    here.release()
    await asyncio.wait_for(drain, 60.0)
    assert all(t.finish is not None for t in found.group.trajectories)
    assert found.fleet.router.pick(2, is_new=True) is None and found.fleet.router.pick(2) is None
    await announce(found, tmp_path)
    assert found.fleet.router.pick(2, is_new=True) is not None


async def test_a_group_whose_stream_broke_ends_elsewhere_within_the_drain(found: StreamingStage) -> None:
    here, there = await found.stream_some()
    drain = start_drain(found)
    here.break_streams = 1
    here.release()
    await asyncio.wait_for(drain, 60.0)
    assert all(t.finish is not None for t in found.group.trajectories)
    assert len(here.bodies) + len(there.bodies) == 2
    assert found.queue.conservation()["dropped: outlived"] == 0


async def test_a_drain_waits_for_evaluations_on_the_same_servers(found: StreamingStage) -> None:
    await found.work
    (server, _) = found.fleet.members.servers.values()
    found.fleet.router.acquire(server, 4)
    drain = start_drain(found)
    await let_all_run()
    assert not drain.done()
    found.fleet.router.release(server, 4)
    await asyncio.wait_for(drain, 60.0)


async def test_without_a_server_a_drain_ends_and_the_next_version_drops_what_was_left(
    found: StreamingStage, tmp_path: Path
) -> None:
    await found.work
    group = found.queue.admit(make_task(2))
    begun, ended = group.trajectories
    found.queue.append(group, begun, [Segment(0, [5, 6], [-0.5, -0.5])], None)
    found.queue.append(group, ended, [Segment(0, [5, 6, 1], [-0.5] * 3)], Finish.STOP)
    found.generator.rules = RequestRules(ends_with_its_version=True)
    drain = start_drain(found)
    await let_all_run()
    # It could continue, and does not; a group of the controller would.
    assert not drain.done()
    found.may_restart = asyncio.Event()
    for server in list(found.fleet.members.serving()):
        found.fleet.members.fail(server, "test")
    await asyncio.wait_for(drain, 60.0)
    await announce(found, tmp_path)
    found.may_restart.set()
    await asyncio.wait_for(_both_serve(found), 20.0)
    assert [trajectory async for trajectory in found.generator.run(group)] == []
    assert (group.state, group.reason) == (GroupState.DROPPED, DropReason.OUTLIVED)
    assert found.queue.conservation()["dropped: outlived"] == 5


async def _both_serve(found: StreamingStage) -> None:
    await found.waits.wait_until(
        lambda: len(found.fleet.members.serving()) == 2, owner="test", blocker="servers"
    )


async def test_a_drain_that_a_new_trainer_overtakes_leaves_the_servers_open(
    found: StreamingStage, tmp_path: Path
) -> None:
    await found.stream_some()
    drain = start_drain(found)
    await asyncio.sleep(0)
    await announce(found, tmp_path)
    with pytest.raises(Superseded, match="given up"):
        await asyncio.wait_for(drain, 60.0)
    assert found.fleet.router.pick(2, is_new=True) is not None


async def test_a_drain_without_a_batch_is_refused(found: StreamingStage) -> None:
    drain = Drain(found.queue, found.fleet, found.generator, found.waits)
    with pytest.raises(Superseded, match="no batch is out"):
        await drain.run(1)
    assert found.fleet.router.pick(2, is_new=True) is not None


def check_resumed(found: StreamingStage, there: FakeEngine) -> None:
    """The whole group ended on the other server, each trajectory from all it had."""
    assert all(t.finish is not None for t in found.group.trajectories)
    (body,) = there.bodies
    for ids, trajectory in zip(body["input_ids"], found.group.trajectories, strict=True):
        prefix = ids[3:]
        assert prefix and trajectory.response_tokens()[: len(prefix)] == prefix
        # The engine writes 900 more behind any prefix, at most 1000 in all.
        assert trajectory.num_response_tokens() in (1000, len(prefix) + 900)
    held = found.queue.journal
    held.barrier_blocking()
    ((tokens,),) = held.read("SELECT sum(length(tokens) / 4) FROM segments")
    assert tokens == found.group.num_tokens()


async def test_a_group_that_gets_no_token_resumes_elsewhere_from_its_prefixes(tmp_path: Path) -> None:
    async with stage(tmp_path, hedge_seconds=1.0) as found:
        _, there = await found.stream_some()
        await asyncio.wait_for(found.work, 60.0)
        check_resumed(found, there)
        assert found.fleet.router.num_in_flight == 0


async def test_a_server_that_is_removed_drains_and_is_forgotten(tmp_path: Path) -> None:
    async with stage(tmp_path) as found:
        here, there = await found.stream_some()
        listed = found.fleet.members.change_and_list("remove", here.url)
        assert {row["url"]: row["state"] for row in listed}[here.url] == "leaving"
        await asyncio.wait_for(found.work, 60.0)
        check_resumed(found, there)
        assert list(found.fleet.members.servers) == [there.url]


async def test_a_group_that_was_dropped_stops_and_its_late_tokens_are_counted(tmp_path: Path) -> None:
    async with stage(tmp_path) as found:
        await found.stream_some()
        found.queue.drop(found.group, DropReason.STALE)
        held = found.group.num_tokens()
        await asyncio.wait_for(found.work, 60.0)
        table = found.queue.conservation()
        assert table["dropped: stale"] == held == found.group.num_tokens()
        assert table["generated"] == held + table["dropped: unconfirmed"]
        assert found.fleet.router.num_in_flight == 0
