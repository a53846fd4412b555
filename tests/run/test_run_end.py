"""How a run ends, and what the next start makes of one that lacks something: real wires between fakes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.notebook import Notebook
from fakes.trainer import FakeTrainer

from asyncrl.controller.controller import Controller
from asyncrl.journal.starts import RunEnd, forget_end, recorded_end
from asyncrl.run.metrics_file import Metrics
from asyncrl.wire.messages import CommitRequest


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


def measured(*notebooks: Notebook) -> Metrics:
    return Metrics(evaluations=[row for notebook in notebooks for row in notebook.evaluations])


def occasions(notebook: Notebook) -> list[tuple[str, int]]:
    return [(row["when"], row["step"]) for row in notebook.evaluations]


def end_of(controller: Controller) -> RunEnd | None:
    return recorded_end(controller.queue.journal)


async def stop_during_the_last_evaluation(
    controller: Controller, trainer: FakeTrainer, engine: FakeEngine
) -> None:
    async def train_then_hold() -> None:
        await trainer.run()
        num_asked = len(engine.bodies)
        engine.hold()

        async def stop_once_asked() -> None:
            while len(engine.bodies) == num_asked:
                await asyncio.sleep(0.001)
            controller.stop()

        stopping.append(asyncio.create_task(stop_once_asked()))

    stopping: list[asyncio.Task[None]] = []
    await controller.run(train_then_hold)
    await asyncio.gather(*stopping)


async def test_a_stop_during_the_last_evaluation_leaves_it_to_the_next_start_which_does_just_that(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.controller.controller.ENDING_SECONDS", 0.1)
    # It hangs: aborting its requests does not end them either.
    monkeypatch.setattr(engine, "release", lambda: None)
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, first):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await stop_during_the_last_evaluation(controller, trainer, engine)
        assert occasions(first) == [("before", 0), ("during", 2)]
        assert end_of(controller) is None and not controller.context.state.is_finished
    monkeypatch.undo()
    engine.release()
    engine.bodies.clear()
    async with controller_on(tmp_path, make_recipe(), [engine], known=measured(first)) as (controller, again):
        trainer = FakeTrainer(controller.queue_url, tmp_path, version=4)
        await controller.run(trainer.run)
        assert trainer.batches == [] and occasions(again) == [("after", 4)]
        # Nothing was generated but answers to held-out tasks.
        assert all("-eval-" in rid for body in engine.bodies for rid in body["rid"])
        assert end_of(controller) == RunEnd(version=4, reason="num_steps")
        assert controller.context.state.is_finished


async def test_a_run_that_reached_its_accuracy_ends_by_it_and_trains_no_further(
    engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(evaluation={"every_steps": 1, "stop_at_accuracy": 0.0}, trainer={"num_steps": 50})
    async with controller_on(tmp_path, recipe, [engine]) as (controller, first):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        end = end_of(controller)
        assert end is not None and (end.version, end.reason) == (trainer.version, "stop_at_accuracy")
        assert 1 <= trainer.version < 50 and end.holds(recipe)
        assert not end.holds(make_recipe(trainer={"num_steps": 50}))
        # As a start does.
        controller.queue.journal.write(forget_end())
    async with controller_on(tmp_path, recipe, [engine], known=measured(first)) as (controller, again):
        later = FakeTrainer(controller.queue_url, tmp_path, version=trainer.version)
        await controller.run(later.run)
        assert later.batches == [] and again.evaluations == []
        assert end_of(controller) == end


async def test_a_version_that_an_earlier_start_evaluated_is_not_evaluated_again(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, first):
        trainer = FakeTrainer(controller.queue_url, tmp_path)

        async def train_to_step_3_then_stop() -> None:
            await trainer.run(num_steps=3)
            while ("during", 2) not in occasions(first):
                await asyncio.sleep(0.001)
            controller.stop()

        await controller.run(train_to_step_3_then_stop)
    # The newest checkpoint is of version 2.
    async with controller_on(tmp_path, make_recipe(), [engine], known=measured(first)) as (controller, again):
        later = FakeTrainer(controller.queue_url, tmp_path, version=2)
        await controller.run(later.run)
        assert occasions(again) == [("after", 4)]
        # The trainer, which keeps the best checkpoint, hears of it all the same.
        assert later.heldout.keys() >= {0, 2}


class Unsaved(FakeTrainer):
    """Dies while it saves its last version."""

    async def _send_commit(self, session: aiohttp.ClientSession, request: CommitRequest) -> None:
        """No checkpoint is on disk."""


async def test_a_trainer_that_dies_after_its_last_step_makes_the_lost_steps_again(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        second = FakeTrainer(controller.queue_url, tmp_path)

        async def die_once() -> None:
            await Unsaved(controller.queue_url, tmp_path).run()
            await second.run()

        await controller.run(die_once)
        assert [batch.taken_version for batch in second.batches] == [0, 1, 2, 3]
        assert end_of(controller) == RunEnd(version=4, reason="num_steps")


@pytest.mark.parametrize(("kind", "is_finished"), [(Unsaved, False), (FakeTrainer, True)])
async def test_a_stop_ends_a_run_that_has_saved_all_and_no_other(
    engine: FakeEngine, tmp_path: Path, kind: type[FakeTrainer], is_finished: bool
) -> None:
    recipe = make_recipe(evaluation={"every_steps": 0}, data={"heldout": None})
    async with controller_on(tmp_path, recipe, [engine]) as (controller, _):

        async def train() -> None:
            await kind(controller.queue_url, tmp_path).run()
            controller.stop()
            if not is_finished:
                controller.context.state.cut_off()

        await controller.run(train)
        assert controller.context.state.is_finished is (end_of(controller) is not None) is is_finished
