"""The fleet: who serves, who leaves, who comes back, and with which version."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.engine import FakeEngine

from asyncrl.errors import ServerError, ServerSilent
from asyncrl.records import PublishOutcome
from asyncrl.serving.fleet import MAX_RESTARTS, Fleet
from asyncrl.serving.publication import Publication
from asyncrl.serving.server import ServerState
from asyncrl.serving.sglang import new_session
from asyncrl.waits import Waits


def publication(folder: Path, version: int) -> Publication:
    place = folder / f"v{version}"
    place.mkdir(exist_ok=True)
    made = Publication(version, place, {"a": f"{version:016x}"})
    made.write_manifest()
    return made


async def nothing(url: str) -> None:
    return None


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a person sees of the fleet."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def with_fleet(
    engines: list[FakeEngine],
    scenario: Callable[[Fleet, Waits], Awaitable[None]],
    *,
    restart: Callable[[str], Awaitable[None]] = nothing,
    stop: Callable[[str], Awaitable[None]] = nothing,
) -> None:
    waits = Waits()
    async with new_session() as session:
        fleet = Fleet(
            [e.url for e in engines],
            session=session,
            waits=waits,
            max_running_requests=10,
            restart=restart,
            stop=stop,
        )
        fleet.start()
        try:
            await scenario(fleet, waits)
        finally:
            await fleet.close()


async def serving(fleet: Fleet, waits: Waits, count: int) -> None:
    assert await waits.wait_until(
        lambda: len(fleet.serving()) == count, owner="test", blocker="servers", timeout_seconds=10.0
    ), [(s.url, s.state, s.reason) for s in fleet.servers.values()]


def test_servers_serve_once_the_first_publication_is_verified_on_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                assert fleet.serving() == []
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                assert {server.version for server in fleet.serving()} == {0}

            await with_fleet([one, two], scenario)

    asyncio.run(main())


def test_the_least_loaded_server_with_room_is_picked(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                first = fleet.pick(8)
                assert first is not None
                fleet.acquire(first, 8)
                second = fleet.pick(8)
                assert second is not None and second is not first
                fleet.acquire(second, 8)
                assert fleet.pick(8) is None
                fleet.release(first, 6)
                assert fleet.pick(8) is first

            await with_fleet([one, two], scenario)

    asyncio.run(main())


def test_a_server_that_did_not_take_a_publish_leaves_and_rejoins_with_the_new_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                urls = fleet.hand_wire_to_trainer()
                assert set(urls) == {one.url, two.url}
                outcomes = {
                    one.url: PublishOutcome(True, 0.0),
                    two.url: PublishOutcome(False, 0.0, "no route"),
                }
                await fleet.announce(publication(tmp_path, 1), outcomes)
                assert [server.url for server in fleet.serving()] == [one.url]
                await serving(fleet, waits, 2)
                assert {server.version for server in fleet.serving()} == {1}
                assert two.version == "1"
                # Both are said once; nothing is said of servers that only started.
                assert told(caplog) == [
                    f"server {two.url} leaves: no route",
                    f"server {two.url} serves version 1, digests verified",
                ]

            await with_fleet([one, two], scenario)

    asyncio.run(main())


def test_no_install_runs_while_the_trainer_owns_the_wire(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                fleet.hand_wire_to_trainer()
                fleet.fail(fleet.servers[two.url], "test")
                calls = len(two.calls)
                assert not await waits.wait_until(
                    lambda: len(fleet.serving()) == 2, owner="test", blocker="", timeout_seconds=0.2
                )
                assert len(two.calls) == calls
                await fleet.announce(publication(tmp_path, 1), {one.url: PublishOutcome(True, 0.0)})
                await serving(fleet, waits, 2)

            await with_fleet([one, two], scenario)

    asyncio.run(main())


def test_a_server_that_cannot_be_restarted_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        tries = []

        async def restart(url: str) -> None:
            tries.append(url)
            raise ServerError("it ended with exit code 1")

        async with FakeEngine() as one:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 1)
                server = fleet.servers[one.url]
                fleet.fail(server, "test")
                assert await waits.wait_until(
                    lambda: not fleet.has_hope(), owner="test", blocker="", timeout_seconds=10.0
                )
                assert (server.state, len(tries)) == (ServerState.DEAD, MAX_RESTARTS)
                assert server.reason == "it ended with exit code 1"

            await with_fleet([one], scenario, restart=restart)

    asyncio.run(main())


def test_a_trainer_that_went_back_never_shares_a_prefix_cache_with_the_lost_versions(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                server = fleet.servers[one.url]
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 1)
                await fleet.announce(publication(tmp_path, 1), {one.url: PublishOutcome(True, 0.0)})
                before = fleet.salt(server)
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 1)
                await fleet.announce(publication(tmp_path, 1), {one.url: PublishOutcome(True, 0.0)})
                assert fleet.salt(server) != before

            await with_fleet([one], scenario)

    asyncio.run(main())


def test_servers_that_a_dead_trainer_was_publishing_to_join_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 3), {})
                await serving(fleet, waits, 1)
                fleet.hand_wire_to_trainer()
                # It loaded version 4 before its trainer died; the next trainer is at version 3 again.
                one.version = "4"
                await fleet.announce(publication(tmp_path, 3), {})
                assert fleet.serving() == []
                await serving(fleet, waits, 1)
                assert one.version == "3"

            await with_fleet([one], scenario)

    asyncio.run(main())


def test_a_server_that_somebody_restarted_is_verified_before_it_serves_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 2), {})
                await serving(fleet, waits, 1)
                server = fleet.servers[one.url]
                before = fleet.salt(server)
                await fleet.suspect(server, ServerError("a stream broke"))
                assert server.state is ServerState.SERVING and fleet.salt(server) == before
                one.version = "default"
                await fleet.suspect(server, ServerError("a stream broke"))
                assert server.state is ServerState.STALE
                await serving(fleet, waits, 1)
                assert one.version == "2" and server.num_restarts == 0
                # What it computed in between must not be found under the old salt.
                assert fleet.salt(server) != before

            await with_fleet([one], scenario)

    asyncio.run(main())


def test_a_silent_server_is_restarted_although_its_health_check_answers(tmp_path: Path) -> None:
    async def main() -> None:
        restarted = []

        async def restart(url: str) -> None:
            restarted.append(url)

        async with FakeEngine() as one:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 1)
                await fleet.suspect(fleet.servers[one.url], ServerSilent("nothing for 300 s"))
                await serving(fleet, waits, 1)
                assert restarted == [one.url]

            await with_fleet([one], scenario, restart=restart)

    asyncio.run(main())


def test_a_server_that_was_added_is_waited_for_and_serves_once_verified(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one, FakeEngine() as two:
            waited = []

            async def restart(url: str) -> None:
                # The first try found nobody: now it listens.
                waited.append(url)
                two.is_corrupt = False

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 4), {})
                await serving(fleet, waits, 1)
                two.is_corrupt = True
                fleet.change_and_list("add", two.url)
                assert fleet.servers[two.url].state is ServerState.STALE
                # Other bytes than were published: first the files are doubted, then the server.
                await waits.wait_until(lambda: fleet.wants_publication, owner="test", blocker="a mismatch")
                assert waited == []
                fleet.renew(publication(tmp_path, 4))
                await serving(fleet, waits, 2)
                assert waited == [two.url] and two.version == "4"

            await with_fleet([one], scenario, restart=restart)

    asyncio.run(main())


def test_a_server_that_is_removed_while_it_joins_never_serves(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 1)
                fleet.hand_wire_to_trainer()
                fleet.change_and_list("add", two.url)
                await asyncio.sleep(0)
                joining = fleet.servers[two.url]
                fleet.change_and_list("remove", two.url)
                assert list(fleet.servers) == [one.url]
                await fleet.announce(publication(tmp_path, 1), {one.url: PublishOutcome(True, 0.0)})
                while fleet._tasks:
                    await asyncio.sleep(0)
                assert joining.state is ServerState.LEAVING
                assert [server.url for server in fleet.serving()] == [one.url]

            await with_fleet([one], scenario)

    asyncio.run(main())


def test_a_removed_server_ends_once_it_is_drained_and_nobody_publishes_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        ended: list[str] = []

        async def stop(url: str) -> None:
            ended.append(url)

        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                leaving = fleet.servers[two.url]
                fleet.acquire(leaving, 2)
                fleet.hand_wire_to_trainer()
                fleet.remove(two.url)
                fleet.release(leaving, 2)
                assert two.url not in fleet.servers
                assert not await waits.wait_until(
                    lambda: bool(ended), owner="test", blocker="", timeout_seconds=0.1
                )
                taken = {url: PublishOutcome(True, 0.0) for url in (one.url, two.url)}
                await fleet.announce(publication(tmp_path, 1), taken)
                await fleet._endings[two.url]
                assert ended == [two.url]

            await with_fleet([one, two], scenario, stop=stop)

    asyncio.run(main())


def test_a_server_that_is_added_again_starts_after_its_process_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        events: list[str] = []
        may_end = asyncio.Event()

        async def stop(url: str) -> None:
            await may_end.wait()
            events.append("ended")

        async def restart(url: str) -> None:
            events.append("started")

        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                fleet.remove(two.url)
                fleet.add(two.url)
                calls = len(two.calls)
                assert not await waits.wait_until(
                    lambda: len(fleet.serving()) == 2, owner="test", blocker="", timeout_seconds=0.1
                )
                assert len(two.calls) == calls and events == []
                may_end.set()
                await serving(fleet, waits, 2)
                assert events == ["ended", "started"]

            await with_fleet([one, two], scenario, stop=stop, restart=restart)

    asyncio.run(main())


def test_a_server_that_is_removed_while_it_restarts_ends_after_it_has_started(tmp_path: Path) -> None:
    async def main() -> None:
        events: list[str] = []
        may_start = asyncio.Event()

        async def stop(url: str) -> None:
            events.append("ended")

        async def restart(url: str) -> None:
            await may_start.wait()
            events.append("started")

        async with FakeEngine() as one, FakeEngine() as two:

            async def scenario(fleet: Fleet, waits: Waits) -> None:
                await fleet.announce(publication(tmp_path, 0), {})
                await serving(fleet, waits, 2)
                fleet.fail(fleet.servers[two.url], "test")
                calls = len(two.calls)
                await asyncio.sleep(0)
                fleet.remove(two.url)
                await asyncio.sleep(0)
                assert events == []
                may_start.set()
                await fleet._endings[two.url]
                assert events == ["started", "ended"]
                # Nobody installs weights on what is about to end.
                assert len(two.calls) == calls

            await with_fleet([one, two], scenario, stop=stop, restart=restart)

    asyncio.run(main())
