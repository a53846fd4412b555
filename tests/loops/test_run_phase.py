"""How far a run has come, and who is woken by it."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits


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
