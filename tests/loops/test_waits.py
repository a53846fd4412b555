"""Waits with names."""

import asyncio

import pytest

from asyncrl.loops.waits import Blocker, BlockerKind, TrainersWait, Waits


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
