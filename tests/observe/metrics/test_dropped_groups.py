"""Groups that are dropped while no step ends are told of."""

from pathlib import Path
from typing import Any

import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.records import make_score, make_task
from fakes.trainer import FakeTrainer

from asyncrl.controller.status_writer import StatusWriter
from asyncrl.observe.alarms.no_correct import DroppedGroups, ZeroReward
from asyncrl.records import DropReason
from asyncrl.replay.group import Group

RIGHT, WRONG = (1.0, 1.0), (0.0, 0.0)


def group_of(rewards: tuple[float, ...]) -> Group:
    group = Group(0, make_task(), 0, [])
    group.scores = {str(index): make_score(reward) for index, reward in enumerate(rewards)}
    return group


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def dropped(told: list[dict[str, Any]]) -> DroppedGroups:
    silent = ZeroReward(
        lambda tokens: "", lambda alarm: None, max_new_tokens=8, num_steps=None, groups_per_batch=2
    )
    return DroppedGroups(told.append, silent, groups_per_batch=2)


def test_they_are_told_when_they_fill_four_batches_and_each_time_they_have_doubled(
    dropped: DroppedGroups, told: list[dict[str, Any]]
) -> None:
    for _ in range(100):
        dropped.ended(group_of(WRONG), DropReason.NO_SIGNAL)
        dropped.ended(group_of(WRONG), None)
    assert [row["num_dropped"] for row in told] == [8, 16, 32, 64]


def test_they_are_counted_by_reason_since_the_last_batch(
    dropped: DroppedGroups, told: list[dict[str, Any]]
) -> None:
    for _ in range(7):
        dropped.ended(group_of(WRONG), DropReason.NO_SIGNAL)
    dropped.taken([group_of(WRONG)], 3)
    for rewards in (WRONG, RIGHT, RIGHT, (0.5, 0.5), (0.0, 0.0)):
        dropped.ended(group_of(rewards), DropReason.NO_SIGNAL)
    for reason in (DropReason.FAULT, DropReason.SERVER, DropReason.STALE):
        dropped.ended(group_of(()), reason)
    (row,) = told
    assert (row["step"], row["num_dropped"], row["no_signal"]) == (4, 8, 5)
    assert (row["all_wrong"], row["all_right"]) == (2, 2)
    assert (row["fault"], row["server"], row["stale"]) == (1, 1, 1)


async def test_a_run_whose_groups_have_no_signal_says_so_before_its_first_step(tmp_path: Path) -> None:
    recipe = make_recipe(
        trainer={"num_steps": 1},
        replay={"drops_no_signal": True, "max_dropped_in_a_row": 20},
        evaluation={"every_steps": 0},
        data={"heldout": None},
    )
    # Every response of a version is the same one, and wrong.
    async with FakeEngine() as engine, controller_on(tmp_path, recipe, [engine]) as (controller, notebook):
        said: list[tuple[int, bool]] = []
        status = StatusWriter(
            tmp_path,
            version=0,
            total_steps=1,
            queue=controller.queue,
            fleet=controller.fleet,
            waits=controller.context.waits,
            state=controller.context.state,
        )
        waits: list[str] = []
        hear = notebook.dropped

        def note(row: dict[str, Any]) -> None:
            hear(row)
            waits.append(status.status()["waiting"]["trainer"] or "")
            said.append(
                (
                    len(notebook.steps),
                    any("no response was correct" in alarm.words() for alarm in notebook.alarms),
                )
            )

        notebook.dropped = note  # type: ignore[method-assign]
        await controller.run(FakeTrainer(controller.queue_url, tmp_path).run)
    assert [row["num_dropped"] for row in notebook.drops] == [8, 16, 32]
    assert [row["all_wrong"] for row in notebook.drops] == [8, 16, 32]
    assert all(row["step"] == 1 for row in notebook.drops)
    assert all(
        words.endswith(f", {n} dropped since the last batch")
        for words, n in zip(waits, (8, 16, 32), strict=True)
    )
    # Five batches' worth without a right response are an alarm, too.
    assert said == [(0, False), (0, True), (0, True)]
