"""The life of a server when its trainer publishes, and what is said of it."""

import logging

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew

from asyncrl.records import PublishOutcome


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a person sees of the fleet."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_server_that_did_not_take_a_publish_leaves_and_rejoins_with_the_new_version(
    pair: Crew, one: FakeEngine, two: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = pair.fleet
    urls = fleet.hand_wire_to_trainer()
    assert set(urls) == {one.url, two.url}
    await pair.announce(1, {one.url: TAKEN, two.url: PublishOutcome(False, 0.0, "no route")})
    assert [server.url for server in fleet.members.serving()] == [one.url]
    await pair.until_serving(2)
    assert {server.version for server in fleet.members.serving()} == {1}
    assert two.version == "1"
    # Both are said once; nothing is said of servers that only started.
    assert told(caplog) == [
        f"server {two.url} leaves: no route",
        f"server {two.url} serves version 1, digests verified",
    ]


async def test_servers_that_a_dead_trainer_was_publishing_to_join_again(solo: Crew, one: FakeEngine) -> None:
    await solo.announce(3)
    await solo.until_serving(1)
    solo.fleet.hand_wire_to_trainer()
    # It loaded version 4 before its trainer died; the next trainer is at version 3 again.
    one.version = "4"
    await solo.announce(3)
    assert solo.fleet.members.serving() == []
    await solo.until_serving(1)
    assert one.version == "3"
