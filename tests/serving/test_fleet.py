"""The fleet: which servers serve and hear of a publish, which of them gets a request, and what is summed and
said of them."""

import logging
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew, crew_on, fleet_of_two

from asyncrl.errors import ServerError
from asyncrl.records import PublishOutcome
from asyncrl.serving.server import ServerState
from asyncrl.serving.server_process import MAX_RESTARTS


async def test_servers_serve_once_the_first_publication_is_verified_on_them(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one, two], tmp_path) as crew:
        assert crew.fleet.members.serving() == []
        await crew.announce(0)
        await crew.until_serving(2)
        assert {server.version for server in crew.fleet.members.serving()} == {0}


async def test_no_install_runs_while_the_trainer_owns_the_wire(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet = pair.fleet
    fleet.hand_wire_to_trainer()
    fleet.members.fail(fleet.members.servers[two.url], "test")
    calls = len(two.calls)
    await pair.never(lambda: len(fleet.members.serving()) == 2)
    assert len(two.calls) == calls
    await pair.announce(1, {one.url: TAKEN})
    await pair.until_serving(2)


async def test_the_trainer_is_handed_a_server_that_is_only_suspected(pair: Crew, one: FakeEngine) -> None:
    fleet, suspected = pair.fleet, pair.fleet.members.servers[one.url]
    one.hold_answers()
    async with pair.running(fleet.members.suspect(suspected, ServerError("a stream broke"))):
        await pair.until(lambda: suspected.state == "suspect")
        assert suspected in fleet.members.serving() and one.url in fleet.hand_wire_to_trainer()
        one.version = "1"
        await pair.announce(1, dict.fromkeys(fleet.members.servers, TAKEN))
        one.answer_again()
    assert (suspected.state, suspected.version) == ("serving", 1)


@pytest.mark.parametrize("outcome", [None, PublishOutcome(False, 0.0, "no route")])
async def test_a_suspected_server_that_misses_a_publish_is_not_put_back_into_service(
    pair: Crew, one: FakeEngine, two: FakeEngine, outcome: PublishOutcome | None
) -> None:
    fleet, suspected = pair.fleet, pair.fleet.members.servers[one.url]
    one.hold_answers()
    async with pair.running(fleet.members.suspect(suspected, ServerError("a stream broke"))):
        await pair.until(lambda: suspected.state == "suspect")
        fleet.hand_wire_to_trainer()
        await pair.announce(1, {two.url: TAKEN} | ({} if outcome is None else {one.url: outcome}))
        assert [server.url for server in fleet.members.serving()] == [two.url]
        one.answer_again()
    await pair.until_serving(2)
    assert one.version == "1" and suspected.version == 1


async def test_the_least_loaded_server_with_room_is_picked(pair: Crew) -> None:
    fleet = pair.fleet
    first = fleet.router.pick(8)
    assert first is not None
    fleet.router.acquire(first, 8)
    second = fleet.router.pick(8)
    assert second is not None and second is not first
    fleet.router.acquire(second, 8)
    assert fleet.router.pick(8) is None
    fleet.router.release(first, 6)
    assert fleet.router.pick(8) is first


async def test_a_group_goes_where_what_it_will_hold_fits_best(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    one.cache_tokens, two.cache_tokens = 1000, 3000
    async with crew_on([one, two], tmp_path) as crew:
        await crew.announce(0)
        await crew.until_serving(2)
        fleet = crew.fleet
        small, large = fleet.members.servers[one.url], fleet.members.servers[two.url]
        for server in (small, large):
            fleet.router.acquire(server, 1)
            server.expect(600, held=100)
        # 600 of 1000 tokens, and of 3000.
        assert fleet.router.load(small) == 0.6 and fleet.router.load(large) == 0.2
        assert fleet.router.pick(1, tokens=400) is large
        # The prefix is worth as much as the group is of the server: 400 of 1000.
        assert fleet.router.pick(1, tokens=400, before=small) is small
        assert fleet.router.pick(1, tokens=390, before=small) is large
        assert fleet.router.pick(1, tokens=2400) is large
        assert fleet.router.pick(1, tokens=2401) is None
        assert fleet.utilization.cache_shares() == (200 / 4000, 1200 / 4000)
        # What never fits is generated alone.
        small.expect(-600, held=-100)
        fleet.router.release(small)
        assert fleet.router.pick(8, tokens=10**6) is small


async def test_a_server_that_takes_fewer_requests_than_the_recipe_gets_fewer(
    one: FakeEngine, tmp_path: Path
) -> None:
    one.running_requests = 4
    async with crew_on([one], tmp_path) as crew:
        await crew.announce(0)
        await crew.until_serving(1)
        crew.fleet.router.acquire(crew.fleet.members.servers[one.url], 3)
        assert crew.fleet.router.pick(1) is not None and crew.fleet.router.pick(2) is None


async def test_a_trainer_that_went_back_never_shares_a_prefix_cache_with_the_lost_versions(
    solo: Crew, one: FakeEngine
) -> None:
    fleet, server = solo.fleet, solo.fleet.members.servers[one.url]
    await solo.announce(1, {one.url: TAKEN})
    before = fleet.router.salt(server)
    await solo.announce(0)
    await solo.until_serving(1)
    await solo.announce(1, {one.url: TAKEN})
    assert fleet.router.salt(server) != before


async def test_a_server_that_was_removed_and_added_never_shares_a_prefix_cache_with_its_former_life(
    pair: Crew, two: FakeEngine
) -> None:
    before = pair.fleet.router.salt(pair.fleet.members.servers[two.url])
    pair.fleet.members.remove(two.url)
    pair.fleet.members.add(two.url)
    await pair.until_serving(2)
    assert pair.fleet.router.salt(pair.fleet.members.servers[two.url]) != before


async def test_what_a_server_did_stays_counted_when_it_leaves_or_comes_again(
    pair: Crew, two: FakeEngine
) -> None:
    fleet = pair.fleet
    leaving = fleet.members.servers[two.url]
    fleet.router.acquire(leaving, 3)
    leaving.num_retractions = 2
    fleet.members.remove(two.url)
    # It is added again while its streams end, and removed once more.
    fleet.members.add(two.url)
    streamed, _ = fleet.utilization.stream_seconds()
    busy = fleet.utilization.busy_seconds()
    fleet.router.release(leaving, 3)
    fleet.members.remove(two.url)
    assert two.url not in fleet.members.servers
    assert fleet.utilization.stream_seconds()[0] >= streamed > 0.0
    assert fleet.utilization.busy_seconds() >= busy > 0.0
    assert fleet.utilization.num_retractions() == 2


async def test_streams_are_counted_in_seconds_of_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("asyncrl.serving.server.now_seconds", lambda: now[0])
    async with fleet_of_two() as fleet:
        server, _ = fleet.members.servers.values()
        fleet.router.acquire(server, 4)
        now[0] += 3.0
        fleet.router.release(server, 1)
        # Four streams for three seconds.
        assert server.stream_seconds == pytest.approx(12.0)


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
