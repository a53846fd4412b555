"""When a trainer that died is started again, and when the run gives up."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.errors import DiskError
from asyncrl.launch import local
from asyncrl.launch.trainers import MAX_RESTARTS, TrainerFailed


class DyingTrainer:
    """Ends with the next of `exit_codes` after `num_steps` steps and `num_commits` checkpoints each time."""

    def __init__(self, exit_codes: list[int], *, num_steps: int, num_commits: int) -> None:
        self.exit_codes = exit_codes
        self.num_steps, self.num_commits = num_steps, num_commits
        self.num_starts = 0
        self.controller: Any = SimpleNamespace(
            report=SimpleNamespace(num_steps=1), queue=SimpleNamespace(committed_version=0)
        )

    async def wait(self) -> None:
        self.controller.report.num_steps += self.num_steps
        self.controller.queue.committed_version += self.num_commits
        if self.exit_codes:
            raise TrainerFailed("it died", exit_code=self.exit_codes.pop(0))

    async def stop(self) -> None:
        return None

    async def start(self) -> None:
        self.num_starts += 1

    async def keep_training(self) -> None:
        observer: Any = SimpleNamespace(note=lambda text: None)
        trainers: Any = self
        await local._keep_training(trainers, self.controller, observer, asyncio.Event())


def test_a_trainer_that_is_killed_starts_again_as_long_as_it_makes_steps() -> None:
    trainer = DyingTrainer([-9] * 20, num_steps=1, num_commits=0)
    asyncio.run(trainer.keep_training())
    assert trainer.num_starts == 20


def test_a_trainer_that_is_killed_before_each_step_is_given_up() -> None:
    trainer = DyingTrainer([-9] * 20, num_steps=0, num_commits=0)
    with pytest.raises(TrainerFailed):
        asyncio.run(trainer.keep_training())
    assert trainer.num_starts == MAX_RESTARTS


def test_a_trainer_that_fails_at_each_checkpoint_is_given_up_although_it_repeats_steps() -> None:
    trainer = DyingTrainer([1] * 20, num_steps=5, num_commits=0)
    with pytest.raises(TrainerFailed):
        asyncio.run(trainer.keep_training())
    assert trainer.num_starts == MAX_RESTARTS


def test_a_trainer_that_fails_between_checkpoints_starts_again() -> None:
    trainer = DyingTrainer([1] * 20, num_steps=5, num_commits=1)
    asyncio.run(trainer.keep_training())
    assert trainer.num_starts == 20


def test_a_trainer_that_found_no_room_on_the_disk_does_not_start_again() -> None:
    trainer = DyingTrainer([DiskError.EXIT_CODE], num_steps=5, num_commits=1)
    with pytest.raises(TrainerFailed):
        asyncio.run(trainer.keep_training())
    assert trainer.num_starts == 0
