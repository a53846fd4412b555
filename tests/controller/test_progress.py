"""When the trainer is due, and what moves its watch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.supervisor import FakeSupervisor

from asyncrl.controller.progress import MAX_TRAINER_KILLS, TrainerSide
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits


class Desk(SimpleNamespace):
    num_waiting = 0
    num_asked = 7


@pytest.fixture
async def state() -> RunPhase:
    return RunPhase(Waits())


async def test_the_trainer_is_due_while_it_has_a_batch(tmp_path: Path, state: RunPhase) -> None:
    session: Any = Desk()
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
    session: Any = Desk()
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
