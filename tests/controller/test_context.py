"""The trainer as its requests show it, and the sizes that a run's inputs tell."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.records import make_task

from asyncrl.controller.context import TrainerSession
from asyncrl.controller.inputs import Inputs
from asyncrl.errors import DiskError, QueueError, Superseded
from asyncrl.loops import RunPhase, Waits
from asyncrl.wire.messages import TakeRequest


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
    recipe = make_recipe(tmp_path, rollout={"max_new_tokens": 100}, turns=turns)
    parts: Any = None
    inputs = Inputs(recipe, [make_task()], [], parts, parts, context_tokens)
    assert inputs.longest_trajectory() == expected
