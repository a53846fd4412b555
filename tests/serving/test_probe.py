"""Questions to a server while it serves and after a stream broke. Silence is a server's, not a stream's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew, crew_on

from asyncrl.errors import ServerError
from asyncrl.serving.server import Server, ServerState
from asyncrl.serving.sglang.control import pause_generation
from asyncrl.serving.sglang.health import is_ready
from asyncrl.serving.sglang.http import new_session


async def test_a_server_that_somebody_restarted_is_verified_before_it_serves_on(
    solo: Crew, one: FakeEngine
) -> None:
    fleet, server = solo.fleet, solo.fleet.members.servers[one.url]
    before = fleet.router.salt(server)
    await fleet.members.suspect(server, ServerError("a stream broke"))
    assert server.state is ServerState.SERVING and fleet.router.salt(server) == before
    one.version = "default"
    await fleet.members.suspect(server, ServerError("a stream broke"))
    assert server.state is ServerState.STALE
    await solo.until_serving(1)
    assert one.version == "0" and server.num_restarts == 0
    # What it computed in between must not be found under the old salt.
    assert fleet.router.salt(server) != before


async def test_what_streams_from_a_server_that_somebody_restarted_breaks_off(
    solo: Crew, one: FakeEngine
) -> None:
    # It may find keys and values of those weights under the salt that it was sent with.
    server = solo.fleet.members.servers[one.url]

    async def stream() -> None:
        async with server.heartbeat.streaming():
            await asyncio.Event().wait()

    streaming = asyncio.create_task(stream())
    await solo.fleet.members.suspect(server, ServerError("another stream broke"))
    assert not streaming.done()
    one.version = "default"
    await solo.fleet.members.suspect(server, ServerError("another stream broke"))
    with pytest.raises(ServerError, match="holds weight version default, not 0"):
        await asyncio.wait_for(streaming, 60.0)


async def test_a_server_whose_stream_broke_and_that_does_not_answer_is_restarted(
    solo: Crew, one: FakeEngine
) -> None:
    server = solo.fleet.members.servers[one.url]
    one.is_ready = False

    async def start(url: str) -> None:
        one.is_ready = True

    solo.processes.on_restart = start
    await solo.fleet.members.suspect(server, ServerError("a stream broke"))
    assert not server.is_serving() and server.reason == "a stream broke"
    await solo.until_serving(1)
    assert solo.processes.done == [("restart", one.url)]


async def test_a_server_whose_stream_breaks_while_it_is_paused_serves_on(solo: Crew, one: FakeEngine) -> None:
    # A publish pauses it, and a paused server is not ready.
    async with new_session() as session:
        await pause_generation(session, one.url, interrupt="continue", timeout_seconds=5.0)
        assert not await is_ready(session, one.url)
    await solo.fleet.members.suspect(solo.fleet.members.servers[one.url], ServerError("a stream broke"))
    assert solo.fleet.members.servers[one.url].state is ServerState.SERVING and solo.processes.done == []


LIMIT_SECONDS = 0.08
LONG_SECONDS = 1.5
"""Limit of a server that must not be left: half of it is longer than a busy machine pauses."""


@asynccontextmanager
async def solo_on(engine: FakeEngine, folder: Path, silence_seconds: float) -> AsyncIterator[Crew]:
    async with crew_on([engine], folder, silence_seconds=silence_seconds) as crew:
        await crew.announce(0)
        await crew.until_serving(1)
        yield crew


@pytest.fixture
async def solo(one: FakeEngine, tmp_path: Path) -> AsyncIterator[Crew]:
    async with solo_on(one, tmp_path, LIMIT_SECONDS) as crew:
        yield crew


async def stream_nothing(crew: Crew, server: Server) -> None:
    """One request that gets no token as long as its server is not left."""
    crew.fleet.router.acquire(server, 1)
    try:
        async with server.heartbeat.streaming():
            await asyncio.Event().wait()
    finally:
        crew.fleet.router.release(server)


async def answered_for_longer_than_its_limit(engine: FakeEngine, streaming: asyncio.Task[None]) -> None:
    """It is asked half-way into each limit; returns early where what streams from it breaks off."""
    wanted = engine.num_asked + 3
    while engine.num_asked < wanted and not streaming.done():
        await asyncio.sleep(0.01)


async def test_a_server_that_answers_may_let_a_request_wait(one: FakeEngine, tmp_path: Path) -> None:
    # It is paused for weights, or computes others first.
    one.hold()
    async with solo_on(one, tmp_path, LONG_SECONDS) as solo:
        (server,) = solo.fleet.members.serving()
        waiting = asyncio.create_task(stream_nothing(solo, server))
        await answered_for_longer_than_its_limit(one, waiting)
        assert server.is_serving() and not waiting.done()
        waiting.cancel()


async def test_a_server_whose_scheduler_hangs_is_left_and_its_streams_break_at_once(
    solo: Crew, one: FakeEngine
) -> None:
    async def recover(url: str) -> None:
        one.recover()

    solo.processes.on_restart = recover
    (server,) = solo.fleet.members.serving()
    one.hang()
    # Its front end answers on that it is ready.
    with pytest.raises(ServerError, match="streamed nothing for .* and does not answer"):
        await asyncio.wait_for(stream_nothing(solo, server), 60.0)
    await solo.until_serving(1)
    assert solo.processes.done == [("restart", one.url)] and server.num_running == 0


async def test_a_removed_server_whose_scheduler_hangs_lets_its_streams_go_and_ends(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one, two], tmp_path, silence_seconds=LONG_SECONDS) as crew:
        await crew.announce(0)
        await crew.until_serving(2)
        server = crew.fleet.members.servers[one.url]
        waiting = asyncio.create_task(stream_nothing(crew, server))
        await asyncio.sleep(0)
        crew.fleet.members.remove(one.url)
        # It answers: what streams may end.
        await answered_for_longer_than_its_limit(one, waiting)
        assert not waiting.done()
        one.hang()
        with pytest.raises(ServerError, match="streamed nothing for .* and does not answer"):
            await asyncio.wait_for(waiting, 60.0)
        await crew.waits.wait_until(
            lambda: bool(crew.processes.done), owner="test", blocker="", timeout_seconds=10
        )
        assert crew.processes.done == [("stop", one.url)]


async def test_any_token_of_any_stream_is_a_sign_of_life(one: FakeEngine, tmp_path: Path) -> None:
    async with solo_on(one, tmp_path, LONG_SECONDS) as crew:
        (server,) = crew.fleet.members.serving()
        one.hang()
        waiting = asyncio.create_task(stream_nothing(crew, server))
        for _ in range(12):
            await crew.waits.wait_until(
                lambda: False, owner="test", blocker="", timeout_seconds=0.1 * LONG_SECONDS
            )
            server.count_tokens(1)
        assert server.is_serving()
        crew.processes.on_restart = lambda url: asyncio.sleep(0, one.recover())  # type: ignore[func-returns-value]
        with pytest.raises(ServerError, match="streamed nothing"):
            await asyncio.wait_for(waiting, 60.0)


async def test_an_idle_server_is_not_asked_and_never_silent(solo: Crew, one: FakeEngine) -> None:
    one.hang()
    await solo.never(lambda: len(solo.fleet.members.serving()) == 0)
    one.recover()


async def test_a_stream_that_its_own_client_ends_is_no_failure_of_its_server() -> None:
    server, limit = Server("http://a"), asyncio.timeout(None)
    with pytest.raises(TimeoutError):
        async with server.heartbeat.streaming(limit):
            limit.reschedule(0.0)
            server.heartbeat.cut_streams("late")
            await asyncio.Event().wait()
