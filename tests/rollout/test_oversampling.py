"""Rounds that generate more groups than a batch takes: who is parked, who continues, who is admitted when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import STOP, FakeEngine
from fakes.fleets import generating
from fakes.records import finish, make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.recipe.file import parse_recipe
from asyncrl.records import SamplingParams
from asyncrl.replay.group import GroupState
from asyncrl.rollout.early_abort import EarlyAbort
from asyncrl.rollout.filter import Oversampling


def test_a_round_admits_that_many_times_a_batch_and_ends_when_the_batch_is_ready(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=3)
    queue.announce(0)
    oversampling = Oversampling(queue, 1.5)
    groups = []
    while oversampling.may_admit(0) and queue.can_admit():
        groups.append(queue.admit(make_task()))
    # 1.5 x 2 groups, although the staleness bound would admit (3 + 0 + 1) x 2.
    assert len(groups) == 3
    finish(queue, groups[1], version=0)
    assert not oversampling.is_over()
    finish(queue, groups[2], version=0)
    assert oversampling.is_over() and not oversampling.may_admit(0)
    assert queue.take(0) == groups[1:]
    # The next round: the straggler waits for a server, and comes before anything new.
    assert not oversampling.is_over()
    assert not oversampling.may_admit(num_waiting=1) and oversampling.may_admit(num_waiting=0)


def test_a_round_does_not_end_before_the_groups_that_are_due_are_ready(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1)
    queue.announce(0)
    oversampling = Oversampling(queue, 2.0)
    straggler, quick = queue.admit(make_task()), queue.admit(make_task())
    finish(queue, quick, version=0)
    assert oversampling.is_over()
    queue.take(0)
    queue.announce(1)
    other = queue.admit(make_task())
    finish(queue, other, version=1)
    # Admitted at version 0, the straggler must be in the batch of step 1: it is not parked.
    assert not oversampling.is_over()
    finish(queue, straggler, version=1)
    assert oversampling.is_over() and queue.take(1) == [straggler]


async def test_a_straggler_is_aborted_keeps_its_prefix_and_resumes_when_the_batch_is_taken(
    tmp_path: Path,
) -> None:
    queue = make_queue(tmp_path, batch=1)
    oversampling, engine = Oversampling(queue, 2.0), FakeEngine(num_tokens=900, chunk_tokens=2)
    asked: dict[str, Any] = {"queue": queue, "engine": engine, "is_parked": oversampling.is_over}
    async with generating(tmp_path, SamplingParams(1.0, 1000, (STOP,)), context_tokens=2000, **asked) as run:
        generator, waits = run.generator, run.generator.waits
        straggler, quick = run.group, queue.admit(make_task())

        early_abort = asyncio.create_task(EarlyAbort(generator, oversampling, waits).loop())
        work = asyncio.create_task(run.ended())
        while straggler.num_tokens() < 4:
            await asyncio.sleep(0)
        engine.hold()
        finish(queue, quick, version=0)
        await waits.wait_until(
            lambda: not generator.running, owner="test", blocker="the abort", timeout_seconds=10.0
        )
        assert oversampling.is_over() and straggler.state is GroupState.OPEN
        held = [t.num_response_tokens() for t in straggler.trajectories if t.finish is None]
        assert held and min(held) > 0
        queue.take(0)
        await asyncio.wait_for(work, 60.0)
        # The second request of each trajectory opens with its prompt of 3 tokens and what it had.
        assert [len(ids) - 3 for ids in engine.bodies[-1]["input_ids"]] == held
        assert len(engine.bodies) == 2
        assert all(t.finish is not None for t in straggler.trajectories)
        early_abort.cancel()


def test_what_could_never_be_trained_is_refused() -> None:
    raw = {"name": "n", "model": {"path": "m"}, "data": {"train": "d"}, "evaluation": {"every_steps": 0}}
    for section, words in (
        ({"rollout": {"oversampling": 1.5, "max_staleness": 0}}, "max_staleness is 0"),
        ({"rollout": {"oversampling": 1.5, "interrupt": "drain"}}, "drain"),
    ):
        with pytest.raises(InputError, match=words):
            parse_recipe({**raw, **section}, source="test")
