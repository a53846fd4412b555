"""Tasks whose answers changed from visit to visit, and the record of each row."""

from pathlib import Path

import pytest
from fakes.records import generate, make_queue, make_score, make_task, reopen

from asyncrl.journal.responses import read_admissions, read_changed_tasks, read_pass_rates, read_visits
from asyncrl.records import DropReason, RowVisit, Score, Task
from asyncrl.replay.queue import ReplayQueue


def visit(queue: ReplayQueue, task: int, answers: list[str], *, right: str, is_dropped: bool = False) -> None:
    """One group of the task whose trajectories gave `answers`."""
    group = queue.admit(make_task(task))
    generate(queue, group, version=0)
    for trajectory, answer in zip(group.trajectories, answers, strict=True):
        score = float(answer == right)
        queue.score(group, trajectory, Score("correct", score, score, answer, "", 0.0), answer)
    if is_dropped:
        queue.drop(group, DropReason.NO_SIGNAL)
    else:
        queue.make_ready(group, {t.trajectory_id: 0.0 for t in group.trajectories})


def test_tasks_are_sorted_by_how_much_their_answers_changed(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=8, samples=3, staleness=3)
    queue.announce(0)
    visit(queue, 1, ["5", "5", "2"], right="2")
    visit(queue, 2, ["3", "3", "7"], right="3")
    visit(queue, 3, ["4", "4", "4"], right="4")
    visit(queue, 1, ["2", "2", "5"], right="2")
    visit(queue, 2, ["3", "3", "3"], right="3", is_dropped=True)
    visit(queue, 3, ["4", "4", "4"], right="4")
    visit(queue, 4, ["9", "9", "9"], right="1")
    queue.journal.barrier_blocking()
    first, second = read_changed_tasks(queue.journal)
    # Another answer and a third more right; the same answer and a third more right.
    assert (first["task_id"], first["num_visits"], first["num_changes"]) == ("train:1", 2, 1)
    assert [(each["answer"], each["num_same"]) for each in first["visits"]] == [("5", 2), ("2", 2)]
    assert [round(each["correct"], 3) for each in first["visits"]] == [0.333, 0.667]
    assert (second["task_id"], second["num_changes"], round(second["moved"], 3)) == ("train:2", 0, 0.333)
    assert second["visits"][1]["state"] == "dropped"
    assert [task["task_id"] for task in read_changed_tasks(queue.journal, offset=1)] == ["train:2"]


def test_of_many_visits_the_last_ones_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(tmp_path, batch=8, samples=1, staleness=3)
    queue.announce(0)
    for answer in "1234":
        visit(queue, 1, [answer], right="4")
    visit(queue, 2, ["5"], right="5")
    visit(queue, 2, ["6"], right="5")
    queue.journal.barrier_blocking()
    monkeypatch.setattr("asyncrl.journal.responses.MOST_VISITS", 3)
    found = {task["task_id"]: task for task in read_changed_tasks(queue.journal)}
    assert found["train:1"]["num_visits"] == 4
    assert [each["answer"] for each in found["train:1"]["visits"]] == ["2", "3", "4"]
    assert [each["answer"] for each in found["train:2"]["visits"]] == ["5", "6"]


def test_faults_are_no_answers_and_a_long_answer_is_cut(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=8, samples=3)
    queue.announce(0)
    group = queue.admit(make_task(1))
    generate(queue, group, version=0)
    scores = [Score("fault", None, None, None, "", 0.0), *[Score("wrong", 0.0, 0.0, "x" * 500, "", 0.0)] * 2]
    for trajectory, score in zip(group.trajectories, scores, strict=True):
        queue.score(group, trajectory, score, "")
    queue.make_ready(group, {t.trajectory_id: 0.0 for t in group.trajectories[1:]})
    queue.journal.barrier_blocking()
    assert queue.journal.read("SELECT num_graded, length(answer), num_same FROM answers") == [(2, 200, 2)]


def grade(queue: ReplayQueue, number: int, *rewards: float | None, reason: DropReason | None = None) -> None:
    group = queue.admit(make_task(number))
    generate(queue, group, version=queue.reached_version())
    for trajectory, reward in zip(group.trajectories, rewards, strict=True):
        queue.score(group, trajectory, make_score(reward), "text")
    if reason is not None:
        queue.drop(group, reason)
    else:
        kept = [t for t, reward in zip(group.trajectories, rewards, strict=True) if reward is not None]
        queue.make_ready(group, {t.trajectory_id: 0.0 for t in kept})


def test_a_row_has_a_pass_rate_over_all_its_graded_trajectories(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=3)
    queue.announce(0)
    grade(queue, 1, 1.0, 0.0)
    grade(queue, 2, 0.0, 0.0, reason=DropReason.NO_SIGNAL)
    queue.take(0)
    queue.announce(1)
    grade(queue, 1, 1.0, None)
    grade(queue, 3, None, None, reason=DropReason.FAULT)
    queue.admit(make_task(4))
    queue.journal.barrier_blocking()
    # Three graded trajectories of row 1, two of them right; a row whose verdicts are all faults has no rate.
    assert read_pass_rates(queue.journal) == {"train:1": pytest.approx(2 / 3), "train:2": 0.0}
    assert [row.task_id for row in read_admissions(queue.journal)] == [f"train:{n}" for n in (1, 2, 1, 3, 4)]
    assert [row.version for row in read_admissions(queue.journal)] == [0, 0, 1, 1, 1]


def test_the_queue_tells_visits_as_its_journal_has_them(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=3)
    told: list[tuple[str, RowVisit]] = []

    def visited(task: Task, found: RowVisit) -> None:
        told.append((task.task_id, found))

    queue.visited = visited
    queue.announce(0)
    grade(queue, 1, 1.0, 0.0)
    grade(queue, 2, 0.0, 0.0, reason=DropReason.NO_SIGNAL)
    queue.journal.barrier_blocking()
    assert told == [(task_id, found) for task_id, _, found in read_visits(queue.journal)]
    assert told == [("train:1", RowVisit(0, 0, 2, 0.5)), ("train:2", RowVisit(1, 0, 2, 0.0))]


def test_the_version_of_visits_never_falls_where_the_trainer_goes_back(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=3)
    for version in range(3):
        queue.announce(version)
        grade(queue, version, 1.0, 0.0)
        queue.take(version)
    queue.announce(3)
    group = queue.admit(make_task(9))
    generate(queue, group, version=3)
    queue.announce(1)
    assert queue.reached_version() == 3
    again = reopen(queue, tmp_path)
    again.announce(0)
    assert again.reached_version() == 3
