"""The tasks of a run end together, and what they were doing when one failed is kept."""

import asyncio

import pytest

from asyncrl.loops.task_group import RunTasks, background, end_tasks
from asyncrl.loops.waits import Waits


async def wait_without_end() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("no verdict")


async def test_the_first_failure_ends_all_and_the_state_of_that_moment_is_kept() -> None:
    waits = Waits()
    loops = RunTasks(waits, lambda: {"What waited for what": waits.describe_waits()})

    async def wait_with_a_name() -> None:
        with waits.waiting("take", "groups"):
            await wait_without_end()

    with pytest.raises(ExceptionGroup) as failed:
        async with loops:
            waiting = loops.start(wait_with_a_name(), "take")
            await asyncio.sleep(0)
            loops.start(fail(), "grade")
    assert [str(error) for error in failed.value.exceptions] == ["no verdict"]
    assert waiting.cancelled() and loops.are_done()
    # The wait had a name then; by now it has ended.
    assert loops.state_at_failure == {"What waited for what": "  take waits for groups since 0 s"}
    assert waits.pending == []


async def test_who_waits_for_the_last_task_is_woken() -> None:
    waits, may_end = Waits(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()

    async with RunTasks(waits, dict) as loops:
        loops.start(work(), "group 1")
        waiting = asyncio.create_task(
            waits.wait_until(loops.are_done, owner="run", blocker="verdicts", timeout_seconds=20.0)
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
        assert await waiting


async def test_what_has_not_ended_in_time_is_cancelled() -> None:
    async with RunTasks(Waits(), dict) as loops:
        hanging, quick = loops.start(wait_without_end(), "a"), loops.start(asyncio.sleep(0), "b")
        await loops.cancel(after_seconds=0.01)
    assert hanging.cancelled() and not quick.cancelled()


async def test_what_runs_in_the_background_has_ended_with_its_block() -> None:
    steps = []

    async def measure() -> None:
        try:
            steps.append("began")
            await wait_without_end()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    with pytest.raises(ValueError, match="no verdict"):
        async with background(measure(), "meter"):
            await asyncio.sleep(0)
            await fail()
    assert steps == ["began", "ended"]


async def test_what_failed_in_the_background_raises_at_the_end_of_its_block() -> None:
    steps = []
    with pytest.raises(ValueError, match="no verdict"):
        async with background(fail(), "meter"):
            await asyncio.sleep(0)
            steps.append("the block is not disturbed")
    assert steps


async def test_who_is_cancelled_while_the_background_ends_is_cancelled() -> None:
    """It would run on otherwise, in a run that is stopped."""
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def measure() -> None:
        try:
            await wait_without_end()
        finally:
            is_ending.set()
            await may_end.wait()

    async def work() -> None:
        async with background(measure(), "meter"):
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    await is_ending.wait()
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    (meter,) = [task for task in asyncio.all_tasks() if task.get_name() == "meter"]
    may_end.set()
    await asyncio.wait([meter])


async def test_tasks_that_are_ended_have_done_their_last_and_keep_their_failures() -> None:
    steps = []

    async def work() -> None:
        try:
            await wait_without_end()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    working, failing = asyncio.create_task(work()), asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_tasks(working, failing)
    assert steps == ["ended"] and working.cancelled()
    assert str(failing.exception()) == "no verdict"
    await end_tasks()
