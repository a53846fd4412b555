"""Tasks whose answers changed from visit to visit."""

from pathlib import Path

import pytest
from fakes.records import generate, make_queue, make_task

from asyncrl.journal.responses import read_changed_tasks
from asyncrl.records import DropReason, Score
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
