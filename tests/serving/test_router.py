"""Which server gets a request, and under which salt."""

from pathlib import Path

from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew, crew_on


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
