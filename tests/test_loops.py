"""Waits with names."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from asyncrl.loops import (
    Blocker,
    BlockerKind,
    RunPhase,
    RunTasks,
    TrainersWait,
    Waits,
    background,
    end_tasks,
)


async def test_a_wait_ends_when_its_condition_holds_after_a_notification() -> None:
    waits, box = Waits(), []

    async def fill() -> None:
        box.append(1)
        waits.notify()

    waiting = asyncio.create_task(waits.wait_until(lambda: bool(box), owner="a", blocker="b"))
    await asyncio.sleep(0)
    assert [(wait.owner, str(wait.blocker)) for wait in waits.pending] == [("a", "b")]
    await fill()
    assert await waiting
    assert not waits.pending


async def test_a_wait_that_runs_out_of_time_says_so() -> None:
    assert not await Waits().wait_until(lambda: False, owner="a", blocker="b", timeout_seconds=0.01)


async def test_waits_are_told_longest_first_and_end_with_their_block() -> None:
    waits = Waits()
    with waits.waiting("a", "b"), waits.waiting("a", "b"), waits.waiting("c", "d"):
        assert waits.describe_waits().splitlines() == [
            "  a waits for b since 0 s",
            "  a waits for b since 0 s",
            "  c waits for d since 0 s",
        ]
    assert waits.pending == []


@pytest.mark.parametrize(
    ("kind", "subject", "words"),
    [
        (BlockerKind.OTHER, "the disk {0}", "the disk {0}"),
        (BlockerKind.GROUPS, "3", "groups for step 3"),
        (BlockerKind.EVALUATION, "before", "the evaluation before training"),
        (BlockerKind.VERDICT, "exact", 'its verdict by "exact"'),
        (BlockerKind.TURN, "the tools", "the answer to its turn by the tools"),
    ],
)
async def test_a_wait_has_a_kind_for_code_and_words_for_people(
    kind: BlockerKind, subject: str, words: str
) -> None:
    waits = Waits()
    with waits.waiting(TrainersWait.TAKE, Blocker(kind, subject)):
        (wait,) = waits.pending
        assert (wait.blocker.kind, wait.blocker.subject) == (kind, subject)
        assert waits.describe_waits() == f"  take waits for {words} since 0 s"


async def test_conditions_are_looked_at_once_for_several_notices_and_one_that_raises_stops_no_other() -> None:
    waits, looks, is_open = Waits(), [], False

    def looked() -> bool:
        looks.append(is_open)
        return is_open

    def broken() -> bool:
        if is_open:
            raise RuntimeError("broken")
        return False

    tasks = [
        asyncio.create_task(waits.wait_until(condition, owner="a", blocker="b"))
        for condition in (broken, looked)
    ]
    await asyncio.sleep(0)
    before = len(looks)
    for _ in range(5):
        waits.notify()
    await asyncio.sleep(0)
    assert len(looks) == before + 1
    is_open = True
    waits.notify()
    failed, found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(failed, RuntimeError) and found is True
    assert not waits.pending


@pytest.mark.parametrize(
    ("change", "is_so"),
    [
        (RunPhase.open, lambda state: state.is_open and state.is_training),
        (RunPhase.end_batches, lambda state: state.is_over and not state.is_ending),
        (RunPhase.end_training, lambda state: state.is_over and state.is_ending and not state.is_training),
        (RunPhase.stop, lambda state: state.is_over and state.is_ending and state.is_stopped),
        (RunPhase.hold_streams, lambda state: state.is_held),
    ],
)
async def test_each_change_wakes_who_waits_for_it(
    change: Callable[[RunPhase], None], is_so: Callable[[RunPhase], bool]
) -> None:
    waits = Waits()
    state = RunPhase(waits)
    waiting = asyncio.create_task(
        waits.wait_until(lambda: is_so(state), owner="a", blocker="b", timeout_seconds=60.0)
    )
    await asyncio.sleep(0)
    assert not waiting.done()
    change(state)
    assert await waiting


async def test_the_first_failure_ends_the_run_from_whatever_thread_it_comes() -> None:
    state = RunPhase(Waits())
    failing = asyncio.create_task(state.raise_failure())
    thread = threading.Thread(target=state.fail_from_thread, args=(ValueError("the disk"),))
    thread.start()
    with pytest.raises(ValueError, match="the disk"):
        await asyncio.wait_for(failing, 60.0)
    thread.join()
    state.fail(KeyError("what followed from it"))
    with pytest.raises(ValueError, match="the disk"):
        await state.raise_failure()


def test_a_failure_after_the_end_of_the_loop_has_nobody_to_tell() -> None:
    async def make() -> RunPhase:
        return RunPhase(Waits())

    asyncio.run(make()).fail_from_thread(ValueError("too late"))


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
