"""What a run says of itself in status.json while it runs, and how that ends."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.small_disk import refused_writes
from fakes.trainer import FakeTrainer

from asyncrl.controller.controller import Controller
from asyncrl.controller.status_writer import StatusWriter
from asyncrl.loops import Blocker, BlockerKind
from asyncrl.records import Score, Task
from asyncrl.run.status import Status, read_status


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as started:
        yield started


def writer_of(controller: Controller, folder: Path, *, version: int = 0) -> StatusWriter:
    return StatusWriter(
        folder,
        version=version,
        total_steps=controller.recipe.trainer.num_steps,
        queue=controller.queue,
        fleet=controller.fleet,
        waits=controller.context.waits,
        state=controller.context.state,
    )


def written(folder: Path) -> Status:
    status = read_status(folder)
    assert status is not None
    return status


async def run_until_rollouts_wait_for(
    words: str, controller: Controller, status: StatusWriter, folder: Path
) -> str:
    """Runs until the status has `words` in what the rollouts wait for; its whole text then."""
    said: list[str] = []

    async def train() -> None:
        training = asyncio.create_task(FakeTrainer(controller.queue_url, folder).run())
        while words not in (waiting := status.status()["waiting"]["rollouts"] or ""):
            await asyncio.sleep(0.001)
        said.append(waiting)
        controller.stop()
        await training

    await controller.run(train)
    (found,) = said
    return found


async def test_a_run_says_how_far_it_is_and_at_last_that_it_has_finished(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        status = writer_of(controller, tmp_path)
        seen: list[Status] = []
        trainer = FakeTrainer(controller.queue_url, tmp_path)

        async def train() -> None:
            training = asyncio.create_task(trainer.run())
            while not training.done():
                seen.append(status.status())
                await asyncio.sleep(0)
            await training

        async with status.running():
            assert status.status()["state"] == "starting"
            await controller.run(train)
        last = written(tmp_path)
        tokens = controller.queue.conservation()["queued"]
    assert [s["step"] for s in seen] == sorted(s["step"] for s in seen)
    assert {s["state"] for s in seen} >= {"evaluating", "training"}
    assert "for the evaluation before training" in {s["waiting"]["trainer"] for s in seen}
    assert (last["state"], last["step"], last["total_steps"]) == ("finished", 4, 4)
    assert last["waiting"] == {"trainer": None, "rollouts": None}
    assert last["queue"]["tokens_in_flight"] == tokens
    (server,) = last["servers"]
    assert (server["url"], server["version"], server["requests"]) == (engine.url, 4, 0)
    assert max(s["servers"][0]["tokens_per_second"] for s in seen) > 0


async def test_a_trainer_without_a_batch_waits_for_rollouts(engine: FakeEngine, tmp_path: Path) -> None:
    recipe = make_recipe(evaluation={"every_steps": 0}, data={"heldout": None})
    async with controller_on(tmp_path, recipe, [engine]) as (controller, _):
        status = writer_of(controller, tmp_path)
        seen: list[Status] = []
        engine.hold()

        async def train_until_it_waits() -> None:
            training = asyncio.create_task(FakeTrainer(controller.queue_url, tmp_path).run())
            while not seen or seen[-1]["waiting"]["trainer"] is None or not engine.bodies:
                seen.append(status.status())
                await asyncio.sleep(0.001)
            controller.stop()
            engine.release()
            await training

        await controller.run(train_until_it_waits)
    assert seen[-1]["waiting"] == {"trainer": "for rollouts: 0 of 2 groups ready", "rollouts": None}
    assert seen[-1]["queue"]["open"] > 0 and seen[-1]["servers"][0]["requests"] > 0


async def test_rollouts_that_the_staleness_bound_holds_up_wait_for_the_trainer(
    engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(evaluation={"every_steps": 0}, data={"heldout": None})
    async with controller_on(tmp_path, recipe, [engine]) as (controller, _):
        status = writer_of(controller, tmp_path)
        said: list[str] = []

        async def train_a_step_and_hang() -> None:
            await FakeTrainer(controller.queue_url, tmp_path).run(num_steps=1)
            while (words := status.status()["waiting"]["rollouts"]) is None:
                await asyncio.sleep(0.001)
            said.append(words)
            controller.stop()

        await controller.run(train_a_step_and_hang)
    # Four groups may be admitted at version 0, of which the batch holds two.
    assert said == ["for the trainer: 2 groups ready, rollout.max_staleness admits no more"]


async def test_a_run_that_is_stopped_says_so_and_one_that_raises_has_failed(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        status = writer_of(controller, tmp_path, version=7)
        with pytest.raises(RuntimeError):
            async with status.running():
                raise RuntimeError("the trainer cannot start")
        failed = written(tmp_path)
        # No trainer has said where it is: the run resumes at 7.
        assert (failed["state"], failed["step"]) == ("failed", 7)
        async with status.running():
            controller.context.state.stop()
        assert written(tmp_path)["state"] == "stopped"


async def test_a_second_ctrl_c_is_a_stop(engine: FakeEngine, tmp_path: Path) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):

        async def run() -> None:
            async with writer_of(controller, tmp_path).running():
                await asyncio.Event().wait()

        running = asyncio.create_task(run())
        while read_status(tmp_path) is None:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert written(tmp_path)["state"] == "stopped"


async def test_a_disk_that_refuses_costs_the_run_one_warning(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.controller.status_writer.INTERVAL_SECONDS", 0.0)
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        status = writer_of(controller, tmp_path)
        tried = 0
        told = status.status

        def counted(*arguments: object) -> Status:
            nonlocal tried
            tried += 1
            return told(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(status, "status", counted)
        with refused_writes(), caplog.at_level(logging.WARNING):
            async with status.running():
                while tried < 3:
                    await asyncio.sleep(0.001)
    assert read_status(tmp_path) is None
    (warning,) = [words for words in caplog.messages if "status.json" in words]
    assert "File too large" in warning and "The run does not need it" in warning


async def test_restarts_of_a_server_are_counted_over_all_publishes(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        status = writer_of(controller, tmp_path)
        for _ in range(3):
            controller.fleet.members.note_restart(engine.url)
        controller.fleet.members.note_restart("http://127.0.0.1:1")
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        async with status.running():
            await controller.run(trainer.run)
    (server,) = written(tmp_path)["servers"]
    assert server["version"] == controller.recipe.trainer.num_steps
    assert server["restarts"] == 3


async def test_rollouts_that_wait_for_answers_to_turns_say_whose(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(evaluation={"every_steps": 0}, data={"heldout": None})
    async with controller_on(tmp_path, recipe, [engine]) as (controller, _):
        status = writer_of(controller, tmp_path)

        async def grade(task: Task, response: str, conversation: object, *, num_turns: int) -> Score:
            turn = Blocker(BlockerKind.TURN, 'the environment "game"')
            with controller.context.waits.waiting("a trajectory", turn):
                await asyncio.Event().wait()
            raise AssertionError("never")

        monkeypatch.setattr(controller.grader, "grade", grade)

        said = await run_until_rollouts_wait_for("answers to turns", controller, status, tmp_path)
    words = r'for \d+ answers to turns by the environment "game": \d+ s, and \d+ verdicts by "exact": \d+ s'
    assert re.fullmatch(words, said)
