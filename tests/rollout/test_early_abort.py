"""Streams that end before their trajectories do: hedged, drained, dropped; no token is confirmed twice."""

import asyncio
from pathlib import Path

from fakes.engine import FakeEngine
from fakes.stage import StreamingStage, stage

from asyncrl.records import DropReason


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
