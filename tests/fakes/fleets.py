"""Fleets on fake engines; and fleets whose servers do not exist, for what a fleet decides without asking."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from fakes.engine import FakeEngine
from fakes.process_owner import FakeProcesses, at_once
from fakes.records import make_queue, make_task

from asyncrl.commands.chat_answers import Writer, writer_on
from asyncrl.loops import RunPhase, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import PublishOutcome, SamplingParams, Task, Trajectory
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import Limits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.publication import Publication
from asyncrl.serving.sglang.http import new_session

TAKEN = PublishOutcome(True, 0.0)


def fleet_on(
    engine: FakeEngine,
    session: aiohttp.ClientSession,
    waits: Waits,
    *,
    version: int = 0,
    max_running_requests: int = 8,
) -> Fleet:
    """It serves `version`, without a loop that looks after it."""
    fleet = Fleet(
        [engine.url],
        FleetSettings(max_running_requests=max_running_requests),
        session=session,
        waits=waits,
        processes=FakeProcesses(),
    )
    fleet.members.serve_fixed(version)
    return fleet


def writer_to(
    engine: FakeEngine, session: aiohttp.ClientSession, codec: TextCodec, say: Callable[[str], None]
) -> Writer:
    """The writer of a chat with the engine."""
    waits = Waits()
    return writer_on(fleet_on(engine, session, waits), waits, codec, 10_000, temperature=0.0, say=say)


@asynccontextmanager
async def fleet_of_two(*, version: int = 0, max_running_requests: int = 20) -> AsyncIterator[Fleet]:
    """Both serve `version`."""
    async with new_session() as session:
        fleet = Fleet(
            ["http://a", "http://b"],
            FleetSettings(max_running_requests=max_running_requests),
            session=session,
            waits=Waits(),
            processes=FakeProcesses(),
        )
        fleet.members.serve_fixed(version)
        yield fleet
        await fleet.members.close()


@dataclass
class Crew:
    """A fleet that has started, and who stands around it: the trainer, and the owner of the processes."""

    fleet: Fleet
    waits: Waits
    folder: Path
    processes: FakeProcesses

    def write(self, version: int) -> Publication:
        place = self.folder / f"v{version}"
        place.mkdir(exist_ok=True)
        made = Publication(version, place, {"a": f"{version:016x}"})
        made.write_manifest()
        return made

    async def announce(self, version: int, outcomes: dict[str, PublishOutcome] | None = None) -> None:
        await self.fleet.announce(self.write(version), outcomes or {})

    async def until(self, condition: Callable[[], bool]) -> None:
        is_met = await self.waits.wait_until(condition, owner="test", blocker="it", timeout_seconds=30.0)
        assert is_met, [(s.url, s.state, s.reason) for s in self.fleet.members.servers.values()]

    async def until_serving(self, count: int) -> None:
        await self.until(lambda: len(self.fleet.members.serving()) == count)

    async def never(self, condition: Callable[[], bool]) -> None:
        """Of what must not happen, as far as a fifth of a second shows it."""
        assert not await self.waits.wait_until(condition, owner="test", blocker="", timeout_seconds=0.2)

    @asynccontextmanager
    async def running(self, work: Coroutine[None, None, None]) -> AsyncIterator[None]:
        """`work` runs at the same time as the block, and must end soon after it."""
        task = asyncio.create_task(work)
        yield
        await asyncio.wait_for(task, 60.0)


@asynccontextmanager
async def crew_on(engines: list[FakeEngine], folder: Path, **settings: object) -> AsyncIterator[Crew]:
    """Nothing is announced yet; `settings` as of `FleetSettings`."""
    waits, processes = Waits(), FakeProcesses(at_once)
    async with new_session() as session:
        fleet = Fleet(
            [engine.url for engine in engines],
            FleetSettings(max_running_requests=10, **settings),  # type: ignore[arg-type]
            session=session,
            waits=waits,
            processes=processes,
        )
        crew = Crew(fleet, waits, folder, processes)
        fleet.members.start()
        yield crew
        await fleet.members.close()


@dataclass
class Generating:
    """A generator with one group on one engine."""

    engine: FakeEngine
    queue: ReplayQueue
    fleet: Fleet
    generator: Generator
    group: Group

    async def ended(self, *trajectories: Trajectory) -> list[Trajectory]:
        """Those of the group, or these of them, as they end."""
        return [each async for each in self.generator.run(self.group, trajectories or None)]


@asynccontextmanager
async def generating(
    folder: Path,
    sampling: SamplingParams,
    *,
    engine: FakeEngine | None = None,
    queue: ReplayQueue | None = None,
    task: Task | None = None,
    version: int = 0,
    max_retries: int = 1,
    context_tokens: int = 64,
    limits: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Generating]:
    """On a queue in `folder`, or on the group that `queue` has, and on an engine that has `version`."""
    async with engine or FakeEngine() as server, new_session() as session:
        server.version = str(version)
        queue, waits = queue or make_queue(folder), Waits()
        queue._changed = waits.notify
        queue.announce(0)
        fleet = fleet_on(server, session, waits, version=version)
        bounds = Limits(sampling, context_tokens, **(limits or {}))
        state = RunPhase(waits)
        generator = Generator(queue, fleet, waits, bounds, max_retries, "run", state=state, **options)
        group = next(iter(queue.live.values()), None) or queue.admit(task or make_task())
        yield Generating(server, queue, fleet, generator, group)
