"""Servers that sleep while the trainer has their GPUs: how they fall asleep, wake, and what may go wrong."""

import asyncio

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew

from asyncrl.errors import ServerError
from asyncrl.serving.server import ServerState

SLEEP = ["/pause_generation", "/flush_cache", "/release_memory_occupation"]
WAKE = ["/resume_memory_occupation", "/pause_generation", "/update_weights_from_disk", "/continue_generation"]


async def fall_asleep(crew: Crew) -> None:
    await asyncio.wait_for(crew.fleet.sleep(), 20.0)
    crew.fleet.hand_wire_to_trainer()


async def test_servers_sleep_until_the_announcement_and_wake_with_what_it_names(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    fleet = pair.fleet
    for engine in (one, two):
        engine.calls.clear()
    await asyncio.wait_for(fleet.sleep(), 20.0)
    assert one.is_asleep and two.is_asleep
    assert fleet.router.pick(1) is None and fleet.hand_wire_to_trainer() == []
    assert [server.state for server in fleet.members.servers.values()] == [ServerState.SLEEPING] * 2
    salts = [fleet.router.salt(server) for server in fleet.members.servers.values()]
    await pair.announce(1)
    await pair.until_serving(2)
    assert one.calls == two.calls == SLEEP + WAKE
    assert (one.version, two.version) == ("1", "1") and fleet.router.pick(1) is not None
    assert not set(salts) & {fleet.router.salt(server) for server in fleet.members.servers.values()}


async def test_a_sleep_that_is_cancelled_and_asked_again_asks_no_server_twice(
    solo: Crew, one: FakeEngine
) -> None:
    task = asyncio.create_task(solo.fleet.sleep())
    await asyncio.sleep(0)
    task.cancel()
    one.calls.clear()
    await fall_asleep(solo)
    await asyncio.wait_for(solo.fleet.sleep(), 20.0)
    assert one.calls == SLEEP


async def test_a_server_that_does_not_fall_asleep_is_restarted_and_sleeps_then(
    solo: Crew, one: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    one.refused_sleeps = 1
    await fall_asleep(solo)
    assert one.is_asleep and solo.processes.done == [("restart", one.url)]
    assert "does not fall asleep" in caplog.text and "it is not idle" in caplog.text


async def test_a_server_whose_process_is_gone_when_it_is_woken_is_restarted(
    solo: Crew, one: FakeEngine
) -> None:
    await fall_asleep(solo)
    # A new process holds memory and knows of no sleep: it would die of the wake-up.
    one.is_asleep = False
    await solo.announce(1)
    await solo.until_serving(1)
    assert one.version == "1" and solo.processes.done == [("restart", one.url)]
    # What it took afterwards counts as a publish: restarts are counted from here.
    await fall_asleep(solo)
    await solo.announce(2)
    await solo.until_serving(1)
    assert solo.fleet.members.servers[one.url].num_restarts == 0


async def test_a_server_that_never_wakes_is_given_up(solo: Crew, one: FakeEngine) -> None:
    async def refuse(url: str) -> None:
        raise ServerError("it ended with exit code 1")

    await fall_asleep(solo)
    one.is_asleep, solo.processes.on_restart = False, refuse
    await solo.announce(1)
    await solo.until(lambda: not solo.fleet.members.has_hope())


async def test_a_server_that_restarts_is_waited_for_and_sleeps_without_joining(
    pair: Crew, one: FakeEngine, two: FakeEngine
) -> None:
    may_restart = asyncio.Event()

    async def slowly(url: str) -> None:
        await may_restart.wait()

    pair.processes.on_restart = slowly
    pair.fleet.members.fail(pair.fleet.members.servers[two.url], "test")
    two.calls.clear()
    sleeping = asyncio.create_task(pair.fleet.sleep())
    await pair.until(lambda: one.is_asleep)
    await pair.never(sleeping.done)
    may_restart.set()
    await asyncio.wait_for(sleeping, 60.0)
    assert two.is_asleep and two.calls == SLEEP


async def test_no_process_starts_on_gpus_that_the_trainer_has(pair: Crew, two: FakeEngine) -> None:
    pair.fleet.members.remove(two.url)
    await pair.until(lambda: ("stop", two.url) in pair.processes.done)
    await fall_asleep(pair)
    pair.fleet.members.add(two.url)
    await pair.never(lambda: ("restart", two.url) in pair.processes.done)
    await pair.announce(1)
    await pair.until_serving(2)
    assert ("restart", two.url) in pair.processes.done


async def test_a_server_that_was_removed_is_waited_for_until_its_process_has_ended(
    pair: Crew, two: FakeEngine
) -> None:
    may_end = asyncio.Event()

    async def slowly(url: str) -> None:
        await may_end.wait()

    pair.processes.on_stop = slowly
    pair.fleet.members.remove(two.url)
    sleeping = asyncio.create_task(pair.fleet.sleep())
    await pair.never(sleeping.done)
    may_end.set()
    await asyncio.wait_for(sleeping, 60.0)
