"""When the trainer and the rollout side are due, and what moves its watch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.records import make_queue
from fakes.supervisor import FakeSupervisor

from asyncrl.controller.progress import MAX_TRAINER_KILLS, RolloutSide, TrainerSide
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits


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
