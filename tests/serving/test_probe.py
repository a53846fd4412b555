"""Questions to a server while it serves and after a stream broke; silence: test_heartbeat.py."""

import asyncio

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew

from asyncrl.errors import ServerError
from asyncrl.serving.server import ServerState
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
