"""Rows that are selected, with a real journal: a run that is killed asks what it would have asked."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.records import generate, make_queue, make_score

from asyncrl.journal.responses import read_admissions, read_visits
from asyncrl.recipe import Recipe
from asyncrl.records import DropReason, Task, VerifierSpec
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.tasks.order import TaskOrder
from asyncrl.tasks.pass_rates import make_shares
from asyncrl.tasks.selection import make_selection
from asyncrl.tasks.source_choice import SourceChoice

NUM_STEPS = 12
BATCH = 4
KINDS: dict[str, dict[str, Any]] = {
    "learnable": {"by": "learnable", "half_life_steps": 3},
    "curriculum": {"by": "curriculum", "column": "level", "stages": 3, "advance_visits": 4},
    "retire": {"by": "retire", "solved_visits": 1, "rest_steps": 3},
}
TASKS = [Task(f"train:{n}", f"{n}+1=", (n, 7), None, VerifierSpec("exact")) for n in range(30)]


class Killed(Exception):
    """The run ends here, as by kill -9 once the journal's writer has written what it was given."""


class Run:
    """A synchronous run: each step admits, generates and grades its batch, and drops what has no signal."""

    def __init__(self, folder: Path, kind: str, *, mixture: bool, rebalance: bool = False) -> None:
        self.folder = folder
        self.kind = kind
        self.sizes, self.weights = ((10, 20), (1.0, 3.0)) if mixture else ((30,), (1.0,))
        self.rebalance = rebalance
        self.asked: dict[int, str] = {}
        """Group -> task."""

    def order(self) -> TaskOrder:
        raw: dict[str, Any] = {
            "name": "x",
            "model": {"path": "m"},
            "data": {"train": "t.jsonl", "selection": KINDS.get(self.kind, {})},
            "rollout": {"samples_per_group": 4, "max_staleness": 0},
            "evaluation": {"every_steps": 0},
        }
        levels = [float(n % 7) for n in range(30)]
        recipe = Recipe.model_validate(raw)
        is_selected = self.kind != "uniform"
        chooser = SourceChoice(
            self.sizes,
            self.weights,
            seed=5,
            is_shuffled=True,
            selection=make_selection(recipe, levels, self.sizes) if is_selected else None,
            is_selected=is_selected,
            shares=make_shares(recipe, self.weights) if self.rebalance else None,
        )
        return TaskOrder(TASKS, seed=5, is_shuffled=True, chooser=chooser)

    def live(self, moments: Iterator[None]) -> None:
        """Continues from the journal to the end, or to where `moments` kills it."""
        queue = make_queue(self.folder, batch=BATCH, samples=4, staleness=0, steps=NUM_STEPS)
        try:
            order = self.order()
            queue.restore(order.find)
            order.recall(read_admissions(queue.journal), read_visits(queue.journal))
            queue.visited = order.visited
            for version in range(queue.num_steps_taken, NUM_STEPS):
                self._step(queue, order, version, moments)
        finally:
            queue.journal.close()

    def _step(self, queue: ReplayQueue, order: TaskOrder, version: int, moments: Iterator[None]) -> None:
        queue.announce(version)
        for group in list(queue.live.values()):
            if not group.advantages:
                self._grade(queue, group)
        while queue.take(version) is None:
            next(moments)
            task = order.next(queue.num_admitted, version)
            group = queue.admit(task)
            assert self.asked.setdefault(group.group_id, task.task_id) == task.task_id
            next(moments)
            self._grade(queue, group)

    def _grade(self, queue: ReplayQueue, group: Group) -> None:
        """By the group alone, so that a run that is killed sees the same rewards."""
        rng = random.Random(f"rewards {group.group_id}")
        ability = (int(group.task.task_id.partition(":")[2]) % 5) / 4
        if not any(trajectory.finish for trajectory in group.trajectories):
            generate(queue, group, version=group.admitted_version)
        for trajectory in group.trajectories:
            reward = float(rng.random() < ability)
            if trajectory.trajectory_id not in group.scores:
                queue.score(group, trajectory, make_score(reward), "")
        rewards = [score.correctness for score in group.scores.values()]
        if len(set(rewards)) == 1 and group.group_id % 3:
            queue.drop(group, DropReason.NO_SIGNAL)
        else:
            queue.make_ready(group, {t.trajectory_id: 0.0 for t in group.trajectories})


def killed_at(moments: list[int]) -> Iterator[Iterator[None]]:
    """The moments of each life; the last one is not killed."""

    def life(limit: int | None) -> Iterator[None]:
        count = 0
        while limit is None or count < limit:
            count += 1
            yield
        raise Killed

    for limit in [*moments, None]:
        yield life(limit)


def order_of(
    folder: Path, kind: str, kills: list[int], *, mixture: bool, rebalance: bool = False
) -> dict[int, str]:
    """Group -> task of a run that is killed at these moments and resumed to its end."""
    folder.mkdir()
    run = Run(folder, kind, mixture=mixture, rebalance=rebalance)
    for moments in killed_at(kills):
        try:
            run.live(moments)
        except Killed:
            continue
    return run.asked


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_run_that_is_killed_asks_the_rows_that_it_would_have_asked(
    tmp_path: Path, kind: str, mixture: bool
) -> None:
    runs = [[], [1, 2, 7], [30, 5, 14, 1]]
    orders = [order_of(tmp_path / str(i), kind, kills, mixture=mixture) for i, kills in enumerate(runs)]
    assert len(orders[0]) > NUM_STEPS * BATCH
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("kind", ["uniform", "learnable"])
def test_a_run_whose_shares_follow_the_signal_asks_the_rows_that_it_would_have_asked(
    tmp_path: Path, kind: str
) -> None:
    runs: list[list[int]] = [[], [30, 5, 14, 1]]
    orders = [
        order_of(tmp_path / str(i), kind, kills, mixture=True, rebalance=True) for i, kills in enumerate(runs)
    ]
    assert len(orders[0]) > NUM_STEPS * BATCH
    assert orders[0] == orders[1]


def test_records_are_known_after_a_restart_where_rows_are_asked_in_turn(tmp_path: Path) -> None:
    """Pilots are judged by them: groups that were open are continued before another row is asked."""
    run = Run(tmp_path, "learnable", mixture=False)
    with pytest.raises(Killed):
        run.live(next(killed_at([60])))
    queue = make_queue(tmp_path, batch=BATCH, samples=4, staleness=0, steps=NUM_STEPS)
    chooser = run.order().chooser
    assert isinstance(chooser, SourceChoice) and chooser.selection is not None
    asked_in_turn = SourceChoice((30,), (1.0,), seed=5, is_shuffled=True, selection=chooser.selection)
    order = TaskOrder(TASKS, seed=5, is_shuffled=True, chooser=asked_in_turn)
    order.recall(read_admissions(queue.journal), read_visits(queue.journal))
    a, b = chooser.selection.rates.posterior(0)
    assert len({float(each) for each in a + b}) > 1
    queue.journal.close()
