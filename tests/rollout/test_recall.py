"""Streams that end before their trajectories do: hedged, drained, dropped; no token is confirmed twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes.engine import STOP, FakeEngine
from fakes.records import make_queue, make_task

from asyncrl.replay.group import DropReason, Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.parking import Parking
from asyncrl.rollout.recall import Recall
from asyncrl.serving.client import new_session
from asyncrl.serving.fleet import Fleet
from asyncrl.signal import Signal
from asyncrl.types import SamplingParams


async def restart(url: str) -> None:
    raise AssertionError(f"{url} did nothing wrong")


@dataclass
class Stage:
    """Two servers of 900 tokens per answer, and one group that streams."""

    engines: dict[str, FakeEngine]
    fleet: Fleet
    queue: ReplayQueue
    generator: Generator
    group: Group
    work: "asyncio.Task[None]"

    async def stream_some(self) -> tuple[FakeEngine, FakeEngine]:
        """(the engine that streams, now held, the other)."""
        while self.group.num_tokens() < 4:
            await asyncio.sleep(0)
        (connection,) = self.generator.connections
        here = self.engines.pop(connection.server.url)
        here.hold()
        (there,) = self.engines.values()
        return here, there


@asynccontextmanager
async def stage(folder: Path, *, hedge_seconds: float | None = None) -> AsyncIterator[Stage]:
    async with (
        FakeEngine(num_tokens=900, chunk_tokens=1) as one,
        FakeEngine(num_tokens=900, chunk_tokens=1) as two,
        new_session() as session,
    ):
        one.version = two.version = "0"
        signal = Signal()
        queue = make_queue(folder, batch=1)
        queue._changed = signal.notify
        queue.announce(0)
        fleet = Fleet(
            [one.url, two.url], session=session, signal=signal, max_running_requests=8, restart=restart
        )
        fleet.serve_fixed(0)
        sampling = SamplingParams(1.0, 1000, (STOP,))
        generator = Generator(queue, fleet, signal, sampling, 2000, 30.0, 1, "run")
        recall = Recall(generator, Parking(queue, None), signal, hedge_seconds=hedge_seconds)
        group = queue.admit(make_task())

        async def generate() -> None:
            async for trajectory in generator.run(group):
                assert trajectory.finish is not None

        loop = asyncio.create_task(recall.run())
        yield Stage(
            {e.url: e for e in (one, two)}, fleet, queue, generator, group, asyncio.create_task(generate())
        )
        loop.cancel()


def check_resumed(found: Stage, there: FakeEngine) -> None:
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


def test_a_group_that_gets_no_token_goes_on_elsewhere_from_its_prefixes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, hedge_seconds=0.2) as found:
            _, there = await found.stream_some()
            await asyncio.wait_for(found.work, 20.0)
            check_resumed(found, there)
            assert found.fleet.num_running() == 0

    asyncio.run(scenario())


def test_a_server_that_is_removed_drains_and_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as found:
            here, there = await found.stream_some()
            listed = found.fleet.change_and_list("remove", here.url)
            assert {row["url"]: row["state"] for row in listed}[here.url] == "leaving"
            await asyncio.wait_for(found.work, 20.0)
            check_resumed(found, there)
            assert list(found.fleet.servers) == [there.url]

    asyncio.run(scenario())


def test_a_group_that_was_dropped_stops_and_its_late_tokens_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as found:
            await found.stream_some()
            found.queue.drop(found.group, DropReason.STALE)
            held = found.group.num_tokens()
            await asyncio.wait_for(found.work, 20.0)
            table = found.queue.conservation()
            assert table["dropped: stale"] == held == found.group.num_tokens()
            assert table["generated"] == held + table["dropped: unconfirmed"]
            assert found.fleet.num_running() == 0

    asyncio.run(scenario())
