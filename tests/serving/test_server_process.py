"""Restarts of a server; its sleep: test_sleep.py, its end: test_membership.py."""

from fakes.engine import FakeEngine
from fakes.fleets import Crew

from asyncrl.errors import ServerError
from asyncrl.serving.server import ServerState
from asyncrl.serving.server_process import MAX_RESTARTS


async def test_a_server_that_cannot_be_restarted_is_given_up(solo: Crew, one: FakeEngine) -> None:
    tries = []

    async def refuse(url: str) -> None:
        tries.append(url)
        raise ServerError("it ended with exit code 1")

    solo.processes.on_restart = refuse
    server = solo.fleet.members.servers[one.url]
    solo.fleet.members.fail(server, "test")
    assert server.state is ServerState.RESTARTING
    await solo.until(lambda: not solo.fleet.members.has_hope())
    assert (server.state, len(tries)) == (ServerState.DEAD, MAX_RESTARTS)
    assert server.reason == "it ended with exit code 1"
