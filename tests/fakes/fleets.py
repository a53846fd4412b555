"""Fleets on fake engines; and fleets whose servers do not exist, for what a fleet decides without asking."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fakes.engine import FakeEngine

from asyncrl.loops.waits import Waits
from asyncrl.records import PublishOutcome
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication
from asyncrl.serving.sglang.http import new_session

TAKEN = PublishOutcome(True, 0.0)


async def restart(url: str) -> None:
    raise AssertionError(f"{url} did nothing wrong")


@asynccontextmanager
async def fleet_of_two(*, version: int = 0, max_running_requests: int = 20) -> AsyncIterator[Fleet]:
    """Both serve `version`."""
    async with new_session() as session:
        fleet = Fleet(
            ["http://a", "http://b"],
            session=session,
            waits=Waits(),
            max_running_requests=max_running_requests,
            restart=restart,
        )
        fleet.serve_fixed(version)
        yield fleet
        await fleet.close()


async def nothing(url: str) -> str | None:
    """A restart or an end that succeeds at once."""
    return None


@dataclass
class Crew:
    """A fleet that has started, and who stands around it: the trainer, and the owner of the processes."""

    fleet: Fleet
    waits: Waits
    folder: Path
    processes: list[tuple[str, str]] = field(default_factory=list)
    """What was done to processes, as ("restart" or "stop", URL), in order."""
    on_restart: Callable[[str], Awaitable[str | None]] = nothing
    on_stop: Callable[[str], Awaitable[object]] = nothing

    def write(self, version: int) -> Publication:
        place = self.folder / f"v{version}"
        place.mkdir(exist_ok=True)
        made = Publication(version, place, {"a": f"{version:016x}"})
        made.write_manifest()
        return made

    async def announce(self, version: int, outcomes: dict[str, PublishOutcome] | None = None) -> None:
        await self.fleet.announce(self.write(version), outcomes or {})

    async def until(self, condition: Callable[[], bool]) -> None:
        is_met = await self.waits.wait_until(condition, owner="test", blocker="it", timeout_seconds=10.0)
        assert is_met, [(s.url, s.state, s.reason) for s in self.fleet.servers.values()]

    async def until_serving(self, count: int) -> None:
        await self.until(lambda: len(self.fleet.serving()) == count)

    async def never(self, condition: Callable[[], bool]) -> None:
        """Of what must not happen, as far as a fifth of a second shows it."""
        assert not await self.waits.wait_until(condition, owner="test", blocker="", timeout_seconds=0.2)

    @asynccontextmanager
    async def running(self, work: Coroutine[None, None, None]) -> AsyncIterator[None]:
        """`work` runs at the same time as the block, and must end soon after it."""
        task = asyncio.create_task(work)
        yield
        await asyncio.wait_for(task, 60.0)

    async def restart(self, url: str) -> str | None:
        now = await self.on_restart(url)
        self.processes.append(("restart", url))
        return now

    async def stop(self, url: str) -> None:
        await self.on_stop(url)
        self.processes.append(("stop", url))
        self.waits.notify()


@asynccontextmanager
async def crew_on(engines: list[FakeEngine], folder: Path, **settings: object) -> AsyncIterator[Crew]:
    """Nothing is announced yet; `settings` as of `Fleet`."""
    waits = Waits()
    async with new_session() as session:
        fleet = Fleet(
            [engine.url for engine in engines],
            session=session,
            waits=waits,
            max_running_requests=10,
            restart=lambda url: crew.restart(url),
            stop=lambda url: crew.stop(url),
            **settings,  # type: ignore[arg-type]
        )
        crew = Crew(fleet, waits, folder)
        fleet.start()
        yield crew
        await fleet.close()
