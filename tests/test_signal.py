"""Waits with names."""

import asyncio

from asyncrl.signal import Signal


def test_a_wait_ends_when_its_condition_holds_after_a_notification() -> None:
    async def scenario() -> None:
        signal, box = Signal(), []

        async def fill() -> None:
            box.append(1)
            signal.notify()

        waiting = asyncio.create_task(signal.wait_until(lambda: bool(box), owner="a", blocker="b"))
        await asyncio.sleep(0)
        assert [(w.owner, w.blocker) for w in signal.waits] == [("a", "b")]
        await fill()
        assert await waiting
        assert not signal.waits

    asyncio.run(scenario())


def test_a_wait_that_runs_out_of_time_says_so() -> None:
    async def scenario() -> None:
        assert not await Signal().wait_until(lambda: False, owner="a", blocker="b", timeout_seconds=0.01)

    asyncio.run(scenario())


def test_waits_are_told_longest_first_and_end_with_their_block() -> None:
    async def scenario() -> None:
        signal = Signal()
        with signal.waiting("a", "b"), signal.waiting("a", "b"), signal.waiting("c", "d"):
            assert signal.describe_waits().splitlines() == [
                "  a waits for b since 0 s",
                "  a waits for b since 0 s",
                "  c waits for d since 0 s",
            ]
        assert signal.waits == []

    asyncio.run(scenario())
