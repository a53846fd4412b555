"""Waits with names."""

import asyncio

from asyncrl.loops.waits import Waits


async def test_a_wait_ends_when_its_condition_holds_after_a_notification() -> None:
    waits, box = Waits(), []

    async def fill() -> None:
        box.append(1)
        waits.notify()

    waiting = asyncio.create_task(waits.wait_until(lambda: bool(box), owner="a", blocker="b"))
    await asyncio.sleep(0)
    assert [(w.owner, w.blocker) for w in waits.pending] == [("a", "b")]
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
