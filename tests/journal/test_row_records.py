"""The record of each row is read from what groups journal anyway."""

from pathlib import Path

import pytest
from fakes.records import generate, make_queue, make_score, make_task, reopen

from asyncrl.journal.responses import read_admissions, read_row_records, read_visits
from asyncrl.records import DropReason, RowVisit, Task
from asyncrl.replay.queue import ReplayQueue


def visit(queue: ReplayQueue, number: int, *rewards: float | None, reason: DropReason | None = None) -> None:
    group = queue.admit(make_task(number))
    generate(queue, group, version=queue.reached_version())
    for trajectory, reward in zip(group.trajectories, rewards, strict=True):
        queue.score(group, trajectory, make_score(reward), "text")
    if reason is not None:
        queue.drop(group, reason)
    else:
        kept = [t for t, reward in zip(group.trajectories, rewards, strict=True) if reward is not None]
        queue.make_ready(group, {t.trajectory_id: 0.0 for t in kept})


def test_a_record_has_visits_pass_rate_and_age(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=3)
    queue.announce(0)
    visit(queue, 1, 1.0, 0.0)
    visit(queue, 2, 0.0, 0.0, reason=DropReason.NO_SIGNAL)
    queue.take(0)
    queue.announce(1)
    visit(queue, 1, 1.0, None)
    visit(queue, 3, None, None, reason=DropReason.FAULT)
    queue.admit(make_task(4))
    queue.journal.barrier_blocking()
    first, second = read_row_records(queue.journal)
    assert (first.task_id, first.num_visits, first.num_graded, first.age) == ("train:1", 2, 3, 0)
    assert first.pass_rate == pytest.approx(2 / 3) and (first.last_group, first.last_version) == (2, 1)
    assert (second.task_id, second.num_visits, second.pass_rate, second.age) == ("train:2", 1, 0.0, 1)
    assert [row.task_id for row in read_admissions(queue.journal)] == [f"train:{n}" for n in (1, 2, 1, 3, 4)]
    assert [row.version for row in read_admissions(queue.journal)] == [0, 0, 1, 1, 1]


def test_the_queue_tells_visits_as_its_journal_has_them(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=3)
    told: list[tuple[str, RowVisit]] = []

    def visited(task: Task, found: RowVisit) -> None:
        told.append((task.task_id, found))

    queue.visited = visited
    queue.announce(0)
    visit(queue, 1, 1.0, 0.0)
    visit(queue, 2, 0.0, 0.0, reason=DropReason.NO_SIGNAL)
    queue.journal.barrier_blocking()
    assert told == [(task_id, found) for task_id, _, found in read_visits(queue.journal)]
    assert told == [("train:1", RowVisit(0, 0, 2, 0.5)), ("train:2", RowVisit(1, 0, 2, 0.0))]


def test_the_version_of_visits_never_falls_where_the_trainer_goes_back(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=3)
    for version in range(3):
        queue.announce(version)
        visit(queue, version, 1.0, 0.0)
        queue.take(version)
    queue.announce(3)
    group = queue.admit(make_task(9))
    generate(queue, group, version=3)
    queue.announce(1)
    assert queue.reached_version() == 3
    again = reopen(queue, tmp_path)
    again.announce(0)
    assert again.reached_version() == 3
