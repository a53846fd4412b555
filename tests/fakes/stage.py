"""Two fake servers, one group that streams, and what stands between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes.engine import STOP, FakeEngine
from fakes.process_owner import FakeProcesses
from fakes.records import make_queue, make_task

from asyncrl.loops import RunPhase, Waits
from asyncrl.records import SamplingParams
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.early_abort import EarlyAbort
from asyncrl.rollout.filter import Oversampling
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import Limits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session


@dataclass
class StreamingStage:
    """Two servers of 900 tokens per answer, and one group that streams."""

    engines: dict[str, FakeEngine]
    fleet: Fleet
    waits: Waits
    queue: ReplayQueue
    generator: Generator
    group: Group
    work: "asyncio.Task[None]"
    may_restart: asyncio.Event | None = None
    """What a restart of a server waits for; None where no server is to fail."""

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
async def stage(folder: Path, *, hedge_seconds: float | None = None) -> AsyncIterator[StreamingStage]:
    async with (
        FakeEngine(num_tokens=900, chunk_tokens=1) as one,
        FakeEngine(num_tokens=900, chunk_tokens=1) as two,
        new_session() as session,
    ):
        one.version = two.version = "0"
        waits = Waits()
        queue = make_queue(folder, batch=1)
        queue._changed = waits.notify
        queue.announce(0)

        async def restart(url: str) -> None:
            assert found.may_restart is not None, f"{url} did nothing wrong"
            await found.may_restart.wait()

        fleet = Fleet(
            [one.url, two.url],
            FleetSettings(max_running_requests=8),
            session=session,
            waits=waits,
            processes=FakeProcesses(restart),
        )
        fleet.members.serve_fixed(0)
        sampling = SamplingParams(1.0, 1000, (STOP,))
        generator = Generator(queue, fleet, waits, Limits(sampling, 2000), 1, "run", state=RunPhase(waits))
        early_abort = EarlyAbort(generator, Oversampling(queue, None), waits, hedge_seconds=hedge_seconds)
        group = queue.admit(make_task())

        async def generate() -> None:
            async for trajectory in generator.run(group):
                assert trajectory.finish is not None

        tasks = asyncio.create_task(early_abort.loop()), asyncio.create_task(generate())
        engines = {engine.url: engine for engine in (one, two)}
        found = StreamingStage(engines, fleet, waits, queue, generator, group, tasks[1])
        yield found
        for task in tasks:
            task.cancel()
        # A stream that broke because the servers end would have one of them restarted.
        await asyncio.gather(*tasks, return_exceptions=True)
        await fleet.members.close()
