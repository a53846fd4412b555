"""Servers that are added, removed and moved."""

import asyncio
from pathlib import Path

from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew, crew_on
from fakes.process_owner import at_once

from asyncrl.errors import ServerError
from asyncrl.serving.server import ServerState


async def test_a_server_that_was_added_is_waited_for_and_serves_once_verified(
    solo: Crew, two: FakeEngine
) -> None:
    async def repair(url: str) -> None:
        # The first try found no listener; now there is one.
        two.is_corrupt = False

    solo.processes.on_restart = repair
    fleet = solo.fleet
    await solo.announce(4)
    await solo.until_serving(1)
    two.is_corrupt = True
    fleet.members.change_and_list("add", two.url)
    assert fleet.members.servers[two.url].state is ServerState.STALE
    # Other bytes than were published: first the files are doubted, then the server.
    await solo.until(lambda: fleet.weight_owner.wants_publication)
    assert solo.processes.done == []
    # Nobody waits for the join: the trainer must be asked to write the files again.
    assert not fleet.members.has_late_joiner()
    fleet.weight_owner.renew(solo.write(4))
    await solo.until_serving(2)
    assert solo.processes.done == [("restart", two.url)] and two.version == "4"


async def test_a_server_that_was_given_up_gets_another_chance_when_it_is_added(
    solo: Crew, one: FakeEngine
) -> None:
    async def refuse(url: str) -> None:
        raise ServerError("it ended with exit code 1")

    solo.processes.on_restart = refuse
    given_up = solo.fleet.members.servers[one.url]
    solo.fleet.members.fail(given_up, "test")
    await solo.until(lambda: given_up.state is ServerState.DEAD)
    solo.processes.on_restart = at_once
    solo.fleet.members.add(one.url)
    await solo.until_serving(1)
    assert solo.fleet.members.servers[one.url].num_restarts == 1
    # What is left of the first life ends none of the second.
    solo.fleet.members.fail(given_up, "late")
    await solo.fleet.members.suspect(given_up, ServerError("late"))
    assert [server.state for server in solo.fleet.members.servers.values()] == [ServerState.SERVING]


async def test_a_server_that_is_removed_while_it_joins_never_serves(
    solo: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet = solo.fleet
    fleet.hand_wire_to_trainer()
    fleet.members.change_and_list("add", two.url)
    await asyncio.sleep(0)
    joining = fleet.members.servers[two.url]
    fleet.members.change_and_list("remove", two.url)
    assert list(fleet.members.servers) == [one.url]
    await solo.announce(1, {one.url: TAKEN})
    await solo.until(lambda: solo.processes.done == [("stop", two.url)])
    assert joining.state is ServerState.LEAVING
    assert [server.url for server in fleet.members.serving()] == [one.url]


async def test_a_server_that_is_removed_before_the_first_publication_ends(
    one: FakeEngine, two: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one, two], tmp_path) as crew:
        await asyncio.sleep(0)
        crew.fleet.members.remove(two.url)
        await crew.until(lambda: crew.processes.done == [("stop", two.url)])


async def test_a_removed_server_ends_once_it_is_drained_and_nobody_publishes_to_it(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet, leaving = pair.fleet, pair.fleet.members.servers[two.url]
    fleet.router.acquire(leaving, 2)
    fleet.hand_wire_to_trainer()
    fleet.members.remove(two.url)
    assert fleet.members.servers[two.url] is leaving
    fleet.router.release(leaving, 2)
    assert two.url not in fleet.members.servers
    await pair.never(lambda: bool(pair.processes.done))
    await pair.announce(1, {url: TAKEN for url in (one.url, two.url)})
    await pair.until(lambda: pair.processes.done == [("stop", two.url)])


async def test_nobody_watches_the_streams_of_a_server_whose_process_ends(pair: Crew, two: FakeEngine) -> None:
    watchers: list[str] = []

    async def look(url: str) -> None:
        watchers.extend(task.get_name() for task in asyncio.all_tasks())

    pair.processes.on_stop = look
    pair.fleet.members.remove(two.url)
    await pair.until(lambda: pair.processes.done == [("stop", two.url)])
    assert f"server {two.url}" in watchers and f"silence of {two.url}" not in watchers


async def test_a_server_that_is_added_again_starts_after_its_process_has_ended(
    pair: Crew, two: FakeEngine
) -> None:
    may_end = asyncio.Event()

    async def hold(url: str) -> None:
        await may_end.wait()

    pair.processes.on_stop = hold
    pair.fleet.members.remove(two.url)
    pair.fleet.members.add(two.url)
    calls = len(two.calls)
    await pair.never(lambda: len(pair.fleet.members.serving()) == 2)
    assert len(two.calls) == calls and pair.processes.done == []
    may_end.set()
    await pair.until_serving(2)
    assert pair.processes.done == [("stop", two.url), ("restart", two.url)]


async def test_a_server_that_is_added_again_while_it_drains_returns_after_its_streams(
    pair: Crew, two: FakeEngine
) -> None:
    fleet, draining = pair.fleet, pair.fleet.members.servers[two.url]
    fleet.router.acquire(draining, 2)
    fleet.members.remove(two.url)
    fleet.members.add(two.url)
    await pair.never(lambda: len(fleet.members.serving()) == 2)
    fleet.router.release(draining, 2)
    await pair.until_serving(2)
    assert fleet.members.servers[two.url] is not draining and fleet.router.num_in_flight == 0


async def test_a_server_that_is_removed_while_it_restarts_ends_after_it_has_started(
    pair: Crew, two: FakeEngine
) -> None:
    is_restarting, may_start = asyncio.Event(), asyncio.Event()

    async def hold(url: str) -> None:
        is_restarting.set()
        await may_start.wait()

    pair.processes.on_restart = hold
    pair.fleet.members.fail(pair.fleet.members.servers[two.url], "test")
    calls = len(two.calls)
    await is_restarting.wait()
    pair.fleet.members.remove(two.url)
    await asyncio.sleep(0)
    assert pair.processes.done == []
    may_start.set()
    await pair.until(lambda: pair.processes.done == [("restart", two.url), ("stop", two.url)])
    # Nobody installs weights on what is about to end.
    assert len(two.calls) == calls


async def test_a_server_that_came_up_on_another_node_joins_there_and_its_old_url_is_forgotten(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    async with FakeEngine() as elsewhere:

        async def move(url: str) -> str:
            assert url == one.url
            return elsewhere.url

        pair.processes.on_restart = move
        fleet = pair.fleet
        running = fleet.members.servers[one.url]
        fleet.router.acquire(running, 2)
        fleet.members.fail(running, "its node was lost")
        await pair.until(lambda: elsewhere.url in [server.url for server in fleet.members.serving()])
        # It has loaded the latest weights, and the other one serves on.
        assert elsewhere.version == one.version and two.url in fleet.members.servers
        # What streamed from the old one is still to notice its end.
        assert running.state == "leaving" and one.url in fleet.members.servers
        fleet.router.release(running, 2)
        await pair.until(lambda: ("stop", one.url) in pair.processes.done)
        assert list(fleet.members.servers) == [two.url, elsewhere.url]
        assert pair.processes.done == [("restart", one.url), ("stop", one.url)]
