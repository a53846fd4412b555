"""A server's end begins with the signal: it wakes each wait of SGLang's."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.background import BackgroundTasks

from asyncrl.serving.engine.hooks import endings


class Manager:
    """As SGLang's TokenizerManager, as far as the hooks know it."""

    def __init__(self) -> None:
        self.gracefully_exit = False
        self.num_ends = 0

    async def end(self, _: "Manager") -> None:
        self.num_ends += 1

    def receive_signal(self) -> None:
        self.gracefully_exit = True
        endings._wake(None, SimpleNamespace(tokenizer_manager=self))


async def forever() -> None:
    await asyncio.Event().wait()


async def test_the_watchdog_sleeps_until_the_signal_and_then_ends_the_server() -> None:
    manager = Manager()
    watchdog = asyncio.create_task(endings._wait_for_signal(manager.end, manager))
    await asyncio.sleep(0)
    assert not watchdog.done() and manager.num_ends == 0
    manager.receive_signal()
    await watchdog
    assert manager.num_ends == 1


async def test_a_signal_before_the_first_request_is_not_missed() -> None:
    manager = Manager()
    manager.receive_signal()
    await endings._wait_for_signal(manager.end, manager)
    assert manager.num_ends == 1


@pytest.mark.parametrize("is_signal_first", [True, False])
async def test_what_a_stream_leaves_ends_with_the_signal(is_signal_first: bool) -> None:
    manager = Manager()
    if is_signal_first:
        manager.receive_signal()
    left = BackgroundTasks()
    left.add_task(forever)
    after_stream = asyncio.create_task(endings._end_by_signal(lambda *_: left, manager, None)())
    await asyncio.sleep(0)
    manager.receive_signal()
    await after_stream


async def test_what_a_stream_leaves_is_done_where_no_signal_comes() -> None:
    done: list[str] = []

    async def abort() -> None:
        done.append("aborted")

    left = BackgroundTasks()
    left.add_task(abort)
    await endings._end_by_signal(lambda *_: left, Manager(), None)()
    assert done == ["aborted"]


async def test_a_scheduler_that_was_told_to_end_does_not_sleep_first() -> None:
    slept: list[Any] = []
    scheduler = SimpleNamespace(gracefully_exit=False)
    endings._stay_awake(slept.append, scheduler)
    scheduler.gracefully_exit = True
    endings._stay_awake(slept.append, scheduler)
    assert slept == [scheduler]
