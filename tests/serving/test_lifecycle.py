"""The life of a server: how it fails, comes back, is added, removed and given up, and what is said of it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import TAKEN, Crew, crew_on, nothing

from asyncrl.errors import ServerError
from asyncrl.loops.waits import Waits
from asyncrl.model.unsampled import Unsampled
from asyncrl.records import PublishOutcome
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.lifecycle import MAX_RESTARTS
from asyncrl.serving.pass_sums import DecodeSums, PassSums
from asyncrl.serving.publication import Publication
from asyncrl.serving.server import ServerState
from asyncrl.serving.sglang.control import pause_generation
from asyncrl.serving.sglang.health import is_ready
from asyncrl.serving.sglang.http import new_session


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
    assert [server.url for server in fleet.serving()] == [one.url]
    await pair.until_serving(2)
    assert {server.version for server in fleet.serving()} == {1}
    assert two.version == "1"
    # Both are said once; nothing is said of servers that only started.
    assert told(caplog) == [
        f"server {two.url} leaves: no route",
        f"server {two.url} serves version 1, digests verified",
    ]


async def test_a_server_tells_its_passes_whenever_it_took_a_version(solo: Crew, one: FakeEngine) -> None:
    server = solo.fleet.servers[one.url]
    for version, passes in ((1, 3.0), (2, 7.0)):
        one.passes = PassSums(DecodeSums(passes))
        solo.fleet.hand_wire_to_trainer()
        await solo.announce(version, {one.url: TAKEN})
        await solo.until(lambda: solo.fleet.passes() == one.passes)
    # One that does not say serves on, and what it said stays.
    one.passes = None
    solo.fleet.hand_wire_to_trainer()
    await solo.announce(3, {one.url: TAKEN})
    await solo.until_serving(1)
    assert (server.version, solo.fleet.passes().decode.passes) == (3, 7.0)


async def test_a_server_that_cannot_be_restarted_is_given_up(solo: Crew, one: FakeEngine) -> None:
    tries = []

    async def refuse(url: str) -> None:
        tries.append(url)
        raise ServerError("it ended with exit code 1")

    solo.on_restart = refuse
    server = solo.fleet.servers[one.url]
    solo.fleet.fail(server, "test")
    assert server.state is ServerState.RESTARTING
    await solo.until(lambda: not solo.fleet.has_hope())
    assert (server.state, len(tries)) == (ServerState.DEAD, MAX_RESTARTS)
    assert server.reason == "it ended with exit code 1"


async def test_a_server_that_was_given_up_gets_another_chance_when_it_is_added(
    solo: Crew, one: FakeEngine
) -> None:
    async def refuse(url: str) -> None:
        raise ServerError("it ended with exit code 1")

    solo.on_restart = refuse
    given_up = solo.fleet.servers[one.url]
    solo.fleet.fail(given_up, "test")
    await solo.until(lambda: given_up.state is ServerState.DEAD)
    solo.on_restart = nothing
    solo.fleet.add(one.url)
    await solo.until_serving(1)
    assert solo.fleet.servers[one.url].num_restarts == 1
    # What is left of the first life ends none of the second.
    solo.fleet.fail(given_up, "late")
    await solo.fleet.suspect(given_up, ServerError("late"))
    assert [server.state for server in solo.fleet.servers.values()] == [ServerState.SERVING]


async def test_a_trainer_that_went_back_never_shares_a_prefix_cache_with_the_lost_versions(
    solo: Crew, one: FakeEngine
) -> None:
    fleet, server = solo.fleet, solo.fleet.servers[one.url]
    await solo.announce(1, {one.url: TAKEN})
    before = fleet.salt(server)
    await solo.announce(0)
    await solo.until_serving(1)
    await solo.announce(1, {one.url: TAKEN})
    assert fleet.salt(server) != before


async def test_a_server_that_was_removed_and_added_never_shares_a_prefix_cache_with_its_former_life(
    pair: Crew, two: FakeEngine
) -> None:
    before = pair.fleet.salt(pair.fleet.servers[two.url])
    pair.fleet.remove(two.url)
    pair.fleet.add(two.url)
    await pair.until_serving(2)
    assert pair.fleet.salt(pair.fleet.servers[two.url]) != before


async def test_servers_that_a_dead_trainer_was_publishing_to_join_again(solo: Crew, one: FakeEngine) -> None:
    await solo.announce(3)
    await solo.until_serving(1)
    solo.fleet.hand_wire_to_trainer()
    # It loaded version 4 before its trainer died; the next trainer is at version 3 again.
    one.version = "4"
    await solo.announce(3)
    assert solo.fleet.serving() == []
    await solo.until_serving(1)
    assert one.version == "3"


async def test_a_server_that_somebody_restarted_is_verified_before_it_serves_on(
    solo: Crew, one: FakeEngine
) -> None:
    fleet, server = solo.fleet, solo.fleet.servers[one.url]
    before = fleet.salt(server)
    await fleet.suspect(server, ServerError("a stream broke"))
    assert server.state is ServerState.SERVING and fleet.salt(server) == before
    one.version = "default"
    await fleet.suspect(server, ServerError("a stream broke"))
    assert server.state is ServerState.STALE
    await solo.until_serving(1)
    assert one.version == "0" and server.num_restarts == 0
    # What it computed in between must not be found under the old salt.
    assert fleet.salt(server) != before


async def test_what_streams_from_a_server_that_somebody_restarted_breaks_off(
    solo: Crew, one: FakeEngine
) -> None:
    # It may find keys and values of those weights under the salt that it was sent with.
    server = solo.fleet.servers[one.url]

    async def stream() -> None:
        async with server.heartbeat.streaming():
            await asyncio.Event().wait()

    streaming = asyncio.create_task(stream())
    await solo.fleet.suspect(server, ServerError("another stream broke"))
    assert not streaming.done()
    one.version = "default"
    await solo.fleet.suspect(server, ServerError("another stream broke"))
    with pytest.raises(ServerError, match="holds weight version default, not 0"):
        await asyncio.wait_for(streaming, 60.0)


async def test_a_server_whose_stream_broke_and_that_does_not_answer_is_restarted(
    solo: Crew, one: FakeEngine
) -> None:
    server = solo.fleet.servers[one.url]
    one.is_ready = False

    async def start(url: str) -> None:
        one.is_ready = True

    solo.on_restart = start
    await solo.fleet.suspect(server, ServerError("a stream broke"))
    assert not server.is_serving() and server.reason == "a stream broke"
    await solo.until_serving(1)
    assert solo.processes == [("restart", one.url)]


async def test_a_server_whose_stream_breaks_while_it_is_paused_serves_on(solo: Crew, one: FakeEngine) -> None:
    # A publish pauses it, and a paused server is not ready.
    async with new_session() as session:
        await pause_generation(session, one.url, interrupt="continue", timeout_seconds=5.0)
        assert not await is_ready(session, one.url)
    await solo.fleet.suspect(solo.fleet.servers[one.url], ServerError("a stream broke"))
    assert solo.fleet.servers[one.url].state is ServerState.SERVING and solo.processes == []


async def test_a_server_that_was_added_is_waited_for_and_serves_once_verified(
    solo: Crew, two: FakeEngine
) -> None:
    async def repair(url: str) -> None:
        # The first try found nobody: now it listens.
        two.is_corrupt = False

    solo.on_restart = repair
    fleet = solo.fleet
    await solo.announce(4)
    await solo.until_serving(1)
    two.is_corrupt = True
    fleet.change_and_list("add", two.url)
    assert fleet.servers[two.url].state is ServerState.STALE
    # Other bytes than were published: first the files are doubted, then the server.
    await solo.until(lambda: fleet.wants_publication)
    assert solo.processes == []
    # Nobody waits for the join: the trainer must be asked to write the files again.
    assert not fleet.has_late_joiner()
    fleet.renew(solo.write(4))
    await solo.until_serving(2)
    assert solo.processes == [("restart", two.url)] and two.version == "4"


async def test_a_server_that_is_removed_while_it_joins_never_serves(
    solo: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet = solo.fleet
    fleet.hand_wire_to_trainer()
    fleet.change_and_list("add", two.url)
    await asyncio.sleep(0)
    joining = fleet.servers[two.url]
    fleet.change_and_list("remove", two.url)
    assert list(fleet.servers) == [one.url]
    await solo.announce(1, {one.url: TAKEN})
    await solo.until(lambda: solo.processes == [("stop", two.url)])
    assert joining.state is ServerState.LEAVING
    assert [server.url for server in fleet.serving()] == [one.url]


async def test_a_removed_server_ends_once_it_is_drained_and_nobody_publishes_to_it(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet, leaving = pair.fleet, pair.fleet.servers[two.url]
    fleet.acquire(leaving, 2)
    fleet.hand_wire_to_trainer()
    fleet.remove(two.url)
    assert fleet.servers[two.url] is leaving
    fleet.release(leaving, 2)
    assert two.url not in fleet.servers
    await pair.never(lambda: bool(pair.processes))
    await pair.announce(1, {url: TAKEN for url in (one.url, two.url)})
    await pair.until(lambda: pair.processes == [("stop", two.url)])


async def test_nobody_watches_the_streams_of_a_server_whose_process_ends(pair: Crew, two: FakeEngine) -> None:
    watchers: list[str] = []

    async def look(url: str) -> None:
        watchers.extend(task.get_name() for task in asyncio.all_tasks())

    pair.on_stop = look
    pair.fleet.remove(two.url)
    await pair.until(lambda: pair.processes == [("stop", two.url)])
    assert f"server {two.url}" in watchers and f"silence of {two.url}" not in watchers


async def test_a_server_that_is_added_again_starts_after_its_process_has_ended(
    pair: Crew, two: FakeEngine
) -> None:
    may_end = asyncio.Event()

    async def hold(url: str) -> None:
        await may_end.wait()

    pair.on_stop = hold
    pair.fleet.remove(two.url)
    pair.fleet.add(two.url)
    calls = len(two.calls)
    await pair.never(lambda: len(pair.fleet.serving()) == 2)
    assert len(two.calls) == calls and pair.processes == []
    may_end.set()
    await pair.until_serving(2)
    assert pair.processes == [("stop", two.url), ("restart", two.url)]


async def test_a_server_that_is_added_again_while_it_drains_returns_after_its_streams(
    pair: Crew, two: FakeEngine
) -> None:
    fleet, draining = pair.fleet, pair.fleet.servers[two.url]
    fleet.acquire(draining, 2)
    fleet.remove(two.url)
    fleet.add(two.url)
    await pair.never(lambda: len(fleet.serving()) == 2)
    fleet.release(draining, 2)
    await pair.until_serving(2)
    assert fleet.servers[two.url] is not draining and fleet.num_in_flight == 0


async def test_a_server_that_is_removed_while_it_restarts_ends_after_it_has_started(
    pair: Crew, two: FakeEngine
) -> None:
    is_restarting, may_start = asyncio.Event(), asyncio.Event()

    async def hold(url: str) -> None:
        is_restarting.set()
        await may_start.wait()

    pair.on_restart = hold
    pair.fleet.fail(pair.fleet.servers[two.url], "test")
    calls = len(two.calls)
    await is_restarting.wait()
    pair.fleet.remove(two.url)
    await asyncio.sleep(0)
    assert pair.processes == []
    may_start.set()
    await pair.until(lambda: pair.processes == [("restart", two.url), ("stop", two.url)])
    # Nobody installs weights on what is about to end.
    assert len(two.calls) == calls


@pytest.fixture
async def fixed(one: FakeEngine, tmp_path: Path) -> AsyncIterator[Crew]:
    """A fleet of the first engine without a trainer: it serves what it was started with, as version 0."""
    waits = Waits()
    async with new_session() as session:
        fleet = Fleet(
            [one.url],
            session=session,
            waits=waits,
            max_running_requests=10,
            restart=lambda url: crew.restart(url),
        )
        crew = Crew(fleet, waits, tmp_path)
        one.version = "0"
        fleet.serve_fixed(0)
        yield crew
        await fleet.close()


async def test_a_server_without_a_trainer_serves_again_after_a_restart(fixed: Crew, one: FakeEngine) -> None:
    server = fixed.fleet.servers[one.url]
    salt = fixed.fleet.salt(server)
    one.is_ready = False

    async def start(url: str) -> None:
        one.is_ready = True

    fixed.on_restart = start
    await fixed.fleet.suspect(server, ServerError("the stream broke"))
    await fixed.until_serving(1)
    assert (server.version, fixed.processes) == (0, [("restart", one.url)])
    # Nothing is known of the cache of the process before.
    assert fixed.fleet.salt(server) != salt


async def test_a_server_without_a_trainer_that_comes_back_with_other_weights_is_given_up(
    fixed: Crew, one: FakeEngine
) -> None:
    one.version = "7"
    server = fixed.fleet.servers[one.url]
    await fixed.fleet.suspect(server, ServerError("the stream broke"))
    await fixed.until(lambda: not fixed.fleet.has_hope())
    assert server.reason == f"{one.url} holds weight version 7, not 0"


async def test_a_server_that_joins_before_the_folder_is_written_waits_for_it(
    one: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one], tmp_path) as crew:
        place = tmp_path / "later"
        await crew.fleet.announce(Publication(0, place, {}), {})
        await crew.never(lambda: bool(crew.fleet.serving()))
        blockers = [wait.blocker for wait in crew.waits.pending]
        assert "the folder of version 0, which the trainer writes" in blockers
        place.mkdir()
        Publication(0, place, {"a": "0" * 16}).write_manifest()
        await crew.until_serving(1)
        assert one.digests == {"a": "0" * 16}


async def test_a_folder_that_is_never_written_is_not_waited_for_once_the_next_one_is(
    one: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one], tmp_path) as crew:
        await crew.fleet.announce(Publication(0, tmp_path / "lost", {}), {})
        await crew.never(lambda: bool(crew.fleet.serving()))
        await crew.announce(1)
        await crew.until_serving(1)
        assert one.version == "1"


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"unsampled": "2"}, "never samples the tokens '2', the run never samples '2,40-49': its log-probs"),
        ({}, "never samples the tokens 'none', the run never samples '2,40-49'"),
        ({"unsampled": "2,40-49"}, ""),
    ],
)
async def test_a_server_that_samples_other_tokens_never_serves(
    one: FakeEngine, tmp_path: Path, hooks: dict[str, str], said: str
) -> None:
    one.hooks |= hooks
    async with crew_on([one], tmp_path, unsampled=Unsampled.parse("2,40-49")) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.servers.values()
        wanted = ServerState.DEAD if said else ServerState.SERVING
        await crew.until(lambda: server.state is wanted)
        assert said in server.reason
        assert ("/update_weights_from_disk" in one.calls) is not bool(said)


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({}, "has no asyncrl plugin: the hook sglang.srt.entrypoints.http_server._setup_and_run_http_server"),
        (
            {
                "sglang": "0.5.23",
                "process": "1",
                "num_ranks": 1,
                "options": [],
                "hooks": {"a.b": True, "c.d": False},
            },
            "runs SGLang 0.5.23, to which 1 hook(s) of asyncrl did not apply: c.d.",
        ),
        (
            {"sglang": "0.6.0", "process": "1", "num_ranks": 1, "options": [], "hooks": {"a.b": True}},
            "runs SGLang 0.6.0; asyncrl's hooks, such as a.b, are written for SGLang 0.5.23.",
        ),
        (
            {
                "sglang": "0.5.23",
                "process": "1",
                "num_ranks": 1,
                "hooks": {"a.b": True},
                "options": ["--model-path", "--speculative-algorithm"],
            },
            "was started with --speculative-algorithm: asyncrl's hooks give each token the version of",
        ),
        ({"hooks": 3}, "expected hooks"),
    ],
)
async def test_a_server_without_all_hooks_never_serves(
    one: FakeEngine, tmp_path: Path, hooks: dict[str, object], said: str
) -> None:
    one.hooks = hooks
    async with crew_on([one], tmp_path) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.servers.values()
        await crew.until(lambda: server.state is ServerState.DEAD)
        assert said in server.reason and one.url in server.reason
        assert "/update_weights_from_disk" not in one.calls
