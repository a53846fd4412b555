"""Answers to the trainer: its requests, batches on their way when the controller ends, parts at their stages;
and the sizes that a run's inputs tell.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.recipes import make_recipe as recipe_of
from fakes.records import finish, make_queue, make_task, reopen
from fakes.trainer import FakeTrainer

from asyncrl.controller.context import RunContext, TrainerSession
from asyncrl.controller.inputs import Inputs
from asyncrl.controller.trainer_wire import TakePart, TrainerWire
from asyncrl.errors import DiskError, QueueError, Superseded
from asyncrl.loops import RunPhase, Waits
from asyncrl.replay.queue import ReplayQueue
from asyncrl.wire.messages import TakeRequest

UNASKED: dict[str, Any] = dict.fromkeys(("generator", "drainer", "copies", "keys"))
"""A batch that is read back asks none of these before it is whole."""


def with_a_group(folder: Path) -> ReplayQueue:
    queue = make_queue(folder, batch=1, samples=2)
    queue.announce(0)
    finish(queue, queue.admit(make_task()), version=0, num_tokens=3)
    return queue


def wire_on(queue: ReplayQueue, **options: Any) -> TrainerWire:
    waits = Waits()
    state = RunPhase(waits)
    context = RunContext(waits, state, queue.journal, TrainerSession(waits, state))
    fleet: Any = SimpleNamespace(weight_owner=SimpleNamespace(is_with_trainer=False, wants_publication=False))
    options |= UNASKED
    wire = TrainerWire(context=context, queue=queue, fleet=fleet, num_steps=2, temperature=1.0, **options)
    state.open()
    return wire


async def test_a_batch_that_is_read_back_has_all_that_was_known_of_it(tmp_path: Path) -> None:
    queue = with_a_group(tmp_path)

    async def batch_of(queue: ReplayQueue, columns: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        wire = wire_on(queue, columns=lambda taken, version: columns)
        request = TakeRequest(version=0)
        wire.context.session.begin(request)
        return await wire._batch(request)

    known = {"correct_mean": 0.5, "outcomes": {"correct": 1, "wrong": 1}}
    first = await batch_of(queue, known)
    assert first[1] == known
    # As after a restart from an earlier checkpoint: the step is trained again.
    again = reopen(queue, tmp_path)
    assert await batch_of(again, {}) == first


async def test_a_batch_that_is_read_back_ends_with_its_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_a_group(tmp_path)
    assert queue.take(0)
    queue.journal.barrier_blocking()
    is_reading = asyncio.Event()

    async def slow_disk() -> None:
        is_reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(queue.journal, "barrier", slow_disk)
    wire = wire_on(queue)
    asking = asyncio.create_task(wire.take(TakeRequest(version=0), 60.0))
    await is_reading.wait()
    (reading,) = [task for task in asyncio.all_tasks() if task.get_name() == "batch of step 1"]
    asking.cancel()
    await asyncio.wait([asking])
    # It continues without its caller: another request may come for the same step.
    assert not reading.done()
    await wire.close()
    assert reading.cancelled()


async def test_parts_act_at_the_stages_of_a_take_in_the_listed_order(
    tmp_path: Path,
) -> None:
    acted: list[str] = []

    class Noted(TakePart):
        def __getattribute__(self, stage: str) -> Any:
            if stage in vars(TakePart) and not stage.startswith("_"):
                name = "first" if self is first else "second"
                acted.append(f"{name} {stage}")
            return super().__getattribute__(stage)

    first, second = Noted(), Noted()
    recipe = make_recipe(data={"heldout": None}, evaluation={"every_steps": 0})
    async with FakeEngine() as engine, controller_on(tmp_path, recipe, [engine]) as (controller, _):
        controller.wire.parts = (first, second)
        await controller.run(FakeTrainer(controller.queue_url, tmp_path).run)
    stages = ["asked", "ends_training", "before_announce", "announced", "before_batch", "before_reply"]
    stages += ["withholds", "given", "complete"]
    assert acted[: 2 * len(stages)] == [f"{name} {stage}" for stage in stages for name in ("first", "second")]
    assert acted[-2:] == ["first close", "second close"] and "first committed" in acted


@pytest.fixture
async def state() -> RunPhase:
    return RunPhase(Waits())


@pytest.fixture
async def session(state: RunPhase) -> TrainerSession:
    return TrainerSession(Waits(), state)


async def test_a_take_gives_up_the_one_before_it_and_names_its_step_from_one_on(
    session: TrainerSession,
) -> None:
    # Equal requests, of two trainers.
    first, second = TakeRequest(4), TakeRequest(4)
    session.begin(first)
    session.check_is_newest(first)
    session.begin(second)
    with pytest.raises(Superseded, match="The take of step 5 was given up: another one came after it"):
        session.check_is_newest(first)
    session.check_is_newest(second)


async def test_a_request_is_counted_once_it_comes_and_waits_until_it_is_answered_or_late(
    session: TrainerSession,
) -> None:
    seen: list[int] = []

    async def work() -> str:
        seen.append(session.num_waiting)
        return "batch"

    assert await session.answer(work(), 10.0) == "batch"
    assert await session.answer(asyncio.Event().wait(), 0.001) is None
    assert (seen, session.num_waiting, session.num_asked) == ([1], 0, 2)


@pytest.mark.parametrize(
    ("error", "ends_run"), [(QueueError("q"), False), (Superseded("s"), False), (DiskError("d"), True)]
)
async def test_a_fault_ends_the_run_and_a_refusal_is_the_trainers_own_matter(
    session: TrainerSession, state: RunPhase, error: Exception, ends_run: bool
) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await session.answer(fail(), 10.0)
    assert session.num_waiting == 0
    failed = asyncio.create_task(state.raise_failure())
    await asyncio.sleep(0)
    assert failed.done() == ends_run
    if ends_run:
        assert failed.exception() is error
    failed.cancel()


@pytest.mark.parametrize(
    ("turns", "context_tokens", "expected"),
    [
        ({}, 10_000, 3 + 100),
        ({"environment": "game", "max_turns": 4, "max_observed_tokens": 50}, 10_000, 3 + 100 + 3 * 50),
        ({"tools": ["calculator"], "max_turns": 4, "max_observed_tokens": 50}, 10_000, 3 + 100 + 3 * 50),
        ({"environment": "game", "max_turns": 4, "max_observed_tokens": 50}, 200, 200),
    ],
)
def test_the_longest_trajectory_holds_what_is_observed(
    tmp_path: Path, turns: dict[str, Any], context_tokens: int, expected: int
) -> None:
    recipe = recipe_of(tmp_path, rollout={"max_new_tokens": 100}, turns=turns)
    parts: Any = None
    inputs = Inputs(recipe, [make_task()], [], parts, parts, context_tokens)
    assert inputs.longest_trajectory() == expected
