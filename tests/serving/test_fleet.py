"""The fleet: who gets a request, who hears of a publish, and whose weights nobody touches meanwhile."""

from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew, crew_on

from asyncrl.errors import ServerError
from asyncrl.records import PublishOutcome
from asyncrl.serving.pass_sums import DecodeSums, PassSums


async def test_servers_serve_once_the_first_publication_is_verified_on_them(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one, two], tmp_path) as crew:
        assert crew.fleet.serving() == []
        await crew.announce(0)
        await crew.until_serving(2)
        assert {server.version for server in crew.fleet.serving()} == {0}


async def test_the_least_loaded_server_with_room_is_picked(pair: Crew) -> None:
    fleet = pair.fleet
    first = fleet.pick(8)
    assert first is not None
    fleet.acquire(first, 8)
    second = fleet.pick(8)
    assert second is not None and second is not first
    fleet.acquire(second, 8)
    assert fleet.pick(8) is None
    fleet.release(first, 6)
    assert fleet.pick(8) is first


async def test_a_group_goes_where_what_it_will_hold_fits_best(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    one.cache_tokens, two.cache_tokens = 1000, 3000
    async with crew_on([one, two], tmp_path) as crew:
        await crew.announce(0)
        await crew.until_serving(2)
        fleet = crew.fleet
        small, large = fleet.servers[one.url], fleet.servers[two.url]
        for server in (small, large):
            fleet.acquire(server, 1)
            server.expect(600, held=100)
        # 600 of 1000 tokens, and of 3000.
        assert fleet.load(small) == 0.6 and fleet.load(large) == 0.2
        assert fleet.pick(1, tokens=400) is large
        # The prefix is worth as much as the group is of the server: 400 of 1000.
        assert fleet.pick(1, tokens=400, before=small) is small
        assert fleet.pick(1, tokens=390, before=small) is large
        assert fleet.pick(1, tokens=2400) is large
        assert fleet.pick(1, tokens=2401) is None
        assert fleet.cache_shares() == (200 / 4000, 1200 / 4000)
        # What never fits is generated alone.
        small.expect(-600, held=-100)
        fleet.release(small)
        assert fleet.pick(8, tokens=10**6) is small


async def test_a_server_that_takes_fewer_requests_than_the_recipe_gets_fewer(
    one: FakeEngine, tmp_path: Path
) -> None:
    one.running_requests = 4
    async with crew_on([one], tmp_path) as crew:
        await crew.announce(0)
        await crew.until_serving(1)
        crew.fleet.acquire(crew.fleet.servers[one.url], 3)
        assert crew.fleet.pick(1) is not None and crew.fleet.pick(2) is None


async def test_a_server_whose_cache_cannot_hold_a_trajectory_never_serves(
    one: FakeEngine, tmp_path: Path
) -> None:
    one.cache_tokens = 107
    async with crew_on([one], tmp_path, longest_tokens=100) as crew:
        await crew.announce(0)
        await crew.until(lambda: not crew.fleet.has_hope())
        assert "107 tokens in its cache" in crew.fleet.servers[one.url].reason


async def test_no_install_runs_while_the_trainer_owns_the_wire(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet = pair.fleet
    fleet.hand_wire_to_trainer()
    fleet.fail(fleet.servers[two.url], "test")
    calls = len(two.calls)
    await pair.never(lambda: len(fleet.serving()) == 2)
    assert len(two.calls) == calls
    await pair.announce(1, {one.url: TAKEN})
    await pair.until_serving(2)


async def test_the_trainer_is_handed_a_server_that_is_only_suspected(pair: Crew, one: FakeEngine) -> None:
    fleet, suspected = pair.fleet, pair.fleet.servers[one.url]
    one.hold_answers()
    async with pair.running(fleet.suspect(suspected, ServerError("a stream broke"))):
        await pair.until(lambda: suspected.state == "suspect")
        assert suspected in fleet.serving() and one.url in fleet.hand_wire_to_trainer()
        one.version = "1"
        await pair.announce(1, dict.fromkeys(fleet.servers, TAKEN))
        one.answer_again()
    assert (suspected.state, suspected.version) == ("serving", 1)


@pytest.mark.parametrize("outcome", [None, PublishOutcome(False, 0.0, "no route")])
async def test_a_suspected_server_that_misses_a_publish_is_not_put_back_into_service(
    pair: Crew, one: FakeEngine, two: FakeEngine, outcome: PublishOutcome | None
) -> None:
    fleet, suspected = pair.fleet, pair.fleet.servers[one.url]
    one.hold_answers()
    async with pair.running(fleet.suspect(suspected, ServerError("a stream broke"))):
        await pair.until(lambda: suspected.state == "suspect")
        fleet.hand_wire_to_trainer()
        await pair.announce(1, {two.url: TAKEN} | ({} if outcome is None else {one.url: outcome}))
        assert [server.url for server in fleet.serving()] == [two.url]
        one.answer_again()
    await pair.until_serving(2)
    assert one.version == "1" and suspected.version == 1


async def test_a_server_that_came_up_on_another_node_joins_there_and_its_old_url_is_forgotten(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    async with FakeEngine() as elsewhere:

        async def move(url: str) -> str:
            assert url == one.url
            return elsewhere.url

        pair.on_restart = move
        fleet = pair.fleet
        running = fleet.servers[one.url]
        fleet.acquire(running, 2)
        fleet.fail(running, "its node was lost")
        await pair.until(lambda: elsewhere.url in [server.url for server in fleet.serving()])
        # It has loaded the latest weights, and the other one serves on.
        assert elsewhere.version == one.version and two.url in fleet.servers
        # What streamed from the old one is still to notice its end.
        assert running.state == "leaving" and one.url in fleet.servers
        fleet.release(running, 2)
        await pair.until(lambda: ("stop", one.url) in pair.processes)
        assert list(fleet.servers) == [two.url, elsewhere.url]
        assert pair.processes == [("restart", one.url), ("stop", one.url)]


async def test_what_a_server_did_stays_counted_when_it_leaves_or_comes_again(
    pair: Crew, two: FakeEngine
) -> None:
    fleet = pair.fleet
    leaving = fleet.servers[two.url]
    fleet.acquire(leaving, 3)
    leaving.num_retractions = 2
    leaving.passes = PassSums(DecodeSums(5.0))
    fleet.remove(two.url)
    # It is added again while its streams end, and removed once more.
    fleet.add(two.url)
    streamed, _ = fleet.stream_seconds()
    busy = fleet.busy_seconds()
    fleet.release(leaving, 3)
    fleet.remove(two.url)
    assert two.url not in fleet.servers
    assert fleet.stream_seconds()[0] >= streamed > 0.0
    assert fleet.busy_seconds() >= busy > 0.0
    assert fleet.num_retractions() == 2
    assert fleet.passes().decode.passes >= 5.0
