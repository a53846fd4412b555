"""Batches of steps: those on their way when the controller ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.records import generate, make_queue, make_score, make_task

from asyncrl.controller.step_batches import StepBatches
from asyncrl.loops.waits import Waits
from asyncrl.wire.messages import TakeRequest

UNASKED: dict[str, Any] = dict.fromkeys(("session", "fleet", "dropped_groups", "metrics", "state"))
"""A batch that is read back asks none of these before it is whole."""


async def test_a_batch_that_is_read_back_ends_with_its_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2)
    queue.announce(0)
    group = queue.admit(make_task())
    generate(queue, group, version=0, num_tokens=3)
    for trajectory, reward in zip(group.trajectories, (1.0, 0.0), strict=True):
        queue.score(group, trajectory, make_score(reward), "")
    queue.make_ready(group, {t.trajectory_id: 0.0 for t in group.trajectories})
    assert queue.take(0) == [group]
    queue.journal.barrier_blocking()
    is_reading = asyncio.Event()

    async def slow_disk() -> None:
        is_reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(queue.journal, "barrier", slow_disk)
    batches = StepBatches(queue=queue, waits=Waits(), temperature=1.0, **UNASKED)
    asking = asyncio.create_task(batches.give(TakeRequest(version=0)))
    await is_reading.wait()
    (reading,) = [task for task in asyncio.all_tasks() if task.get_name() == "batch of step 1"]
    asking.cancel()
    await asyncio.wait([asking])
    # It continues without its caller: another request may come for the same step.
    assert not reading.done()
    await batches.close()
    assert reading.cancelled()
    queue.journal.close()
