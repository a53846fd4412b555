"""What ends a run by itself: between fake servers and a fake trainer, real wires, real journal."""

import asyncio
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.trainer import FakeTrainer
from test_controller import controller_on, make_recipe

from asyncrl.journal.writer import JournalError
from asyncrl.launch.local import first_cause

LIMIT_SECONDS = 60.0


def test_a_journal_that_fails_ends_the_run_although_nothing_is_written_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            FakeEngine() as engine,
            controller_on(tmp_path, make_recipe(evaluation={"every_steps": 0}), [engine]) as (controller, _),
        ):
            # Nothing is generated: no call of the run would meet the failure.
            engine.hold()
            running = asyncio.create_task(controller.run(FakeTrainer(controller.queue_url, tmp_path).run))
            while not engine.bodies:
                await asyncio.sleep(0.001)
            controller.queue.journal.write(("INSERT INTO meta VALUES ('k', ?)", ("\ud800",)))
            with pytest.raises(BaseExceptionGroup) as failed:
                await asyncio.wait_for(running, LIMIT_SECONDS)
            cause = first_cause(failed.value)
            assert isinstance(cause, JournalError) and "UnicodeEncodeError" in str(cause)
            engine.let_go()

    with pytest.raises(JournalError):
        asyncio.run(scenario())
