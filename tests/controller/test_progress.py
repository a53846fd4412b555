"""When the trainer and the rollout side are due, and what moves its watch."""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.records import make_queue
from fakes.supervisor import FakeSupervisor
from simulation.loop import DrivenLoop

from asyncrl.controller.progress import MAX_TRAINER_KILLS, Deadlines, RolloutSide, Stalled, TrainerSide, watch
from asyncrl.loops import RunPhase, Waits, now_seconds


class CallRecorder(SimpleNamespace):
    num_waiting = 0
    num_asked = 7


@pytest.fixture
async def state() -> RunPhase:
    return RunPhase(Waits())


async def test_the_trainer_is_due_while_it_has_a_batch(tmp_path: Path, state: RunPhase) -> None:
    session: Any = CallRecorder()
    trainer = TrainerSide(make_recipe(tmp_path), session, state, FakeSupervisor())
    assert not trainer.is_due()
    state.open()
    assert trainer.is_due()
    session.num_waiting = 1
    assert not trainer.is_due()
    session.num_waiting = 0
    state.end_training()
    assert not trainer.is_due()


async def test_each_of_the_first_kills_counts_as_a_move_and_gives_the_next_trainer_its_time(
    tmp_path: Path, state: RunPhase
) -> None:
    session: Any = CallRecorder()
    supervisor = FakeSupervisor()
    trainer = TrainerSide(make_recipe(tmp_path), session, state, supervisor)
    seen = [trainer.progress()]
    for _ in range(MAX_TRAINER_KILLS + 2):
        trainer.act("nothing moved for 60 s")
        seen.append(trainer.progress())
    assert len(set(seen)) == 1 + MAX_TRAINER_KILLS
    assert supervisor.trainer_kills == (MAX_TRAINER_KILLS + 2) * ["nothing moved for 60 s"]
    session.num_asked += 1
    assert trainer.progress() not in seen


class Tools:
    num, is_in_time = 0, True

    def num_answered(self) -> int:
        return self.num

    def is_answering_in_time(self) -> bool:
        return self.is_in_time


async def test_a_slow_tool_is_no_stalled_server_until_its_time_is_over(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    members = SimpleNamespace(servers={}, has_hope=lambda: True)
    heldout = SimpleNamespace(num_tokens=0, is_answering_in_time=lambda: False)
    session, tools = CallRecorder(num_waiting=1), Tools()
    fleet = SimpleNamespace(members=members)
    side = RolloutSide(make_recipe(tmp_path), queue, fleet, heldout, session, tools)  # type: ignore[arg-type]
    assert not side.is_due()
    before = side.progress()
    tools.num = 1
    assert side.progress() != before
    tools.is_in_time = False
    assert side.is_due()
    alone = RolloutSide(make_recipe(tmp_path), queue, fleet, heldout, session)  # type: ignore[arg-type]
    assert alone.is_due()
    # The trainer may wait for an evaluation, and that for a tool.
    heldout.is_answering_in_time = lambda: True
    assert not alone.is_due()


class Scene(logging.Handler):
    """Something that may move, and what the watchdog said and did about it."""

    what = "the server streams nothing"
    knob = "serving.request_timeout_seconds"
    deadlines = Deadlines(warn_seconds=10.0, act_seconds=20.0, stop_seconds=30.0)

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.is_busy = True
        self.did: list[tuple[float, str]] = []

    def is_due(self) -> bool:
        return self.is_busy

    def progress(self) -> int:
        return self.position

    def act(self, why: str) -> None:
        self.did.append((now_seconds(), "act"))

    def emit(self, record: logging.LogRecord) -> None:
        self.did.append((now_seconds(), "warn"))

    async def look(self, waits: Waits) -> None:
        await watch([self], interval_seconds=1.0, describe=waits.describe_waits)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene, watchdog = Scene(), logging.getLogger("asyncrl.controller.progress")
    watchdog.addHandler(scene)
    yield scene
    watchdog.removeHandler(scene)


def driven(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs an async test under the driven clock."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with contextlib.closing(DrivenLoop(random.Random(0))) as loop:
            loop.run_until_complete(test(**fixtures))

    return run


@driven
async def test_silence_is_warned_of_then_acted_on_then_ends_the_run_by_name(scene: Scene) -> None:
    waits = Waits()
    with waits.waiting("take", "groups for step 3"), pytest.raises(Stalled) as caught:
        await scene.look(waits)
    # The first look, at 1 s, starts the count; deadlines are passed at the look after them.
    assert scene.did == [(12.0, "warn"), (22.0, "warn"), (22.0, "act")]
    assert now_seconds() == 32.0
    assert str(caught.value) == (
        "Nothing moved for 31 s (serving.request_timeout_seconds): the server streams nothing.\n"
        "  take waits for groups for step 3 since 32 s"
    )


@driven
async def test_a_move_sets_the_watch_back(scene: Scene) -> None:
    looking = asyncio.create_task(scene.look(Waits()))
    for _ in range(20):
        await asyncio.sleep(9.5)
        scene.position += 1
    assert scene.did == []
    await asyncio.sleep(25)
    assert [what for _, what in scene.did] == ["warn", "warn", "act"]
    scene.position += 1
    await asyncio.sleep(25)
    assert [what for _, what in scene.did] == 2 * ["warn", "warn", "act"]
    looking.cancel()


@driven
async def test_nothing_is_late_while_nobody_waits(scene: Scene) -> None:
    scene.is_busy = False
    looking = asyncio.create_task(scene.look(Waits()))
    await asyncio.sleep(1000)
    assert scene.did == []
    looking.cancel()
