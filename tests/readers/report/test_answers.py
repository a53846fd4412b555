"""Answers of the base model and of a trained one, pass@k, and the results of `asyncrl eval` in a run
folder."""

from pathlib import Path

import pytest
from fakes.compared_runs import write_run
from fakes.evaluated_run import BASE, K, evaluate_run, row

from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.journal.reader import JournalReader
from asyncrl.readers.report.answers import (
    before_and_after,
    measured_before_and_after,
    read_measured,
    sampled_over_k,
)
from asyncrl.system.places import ANSWERS

LEARNED = {0: [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], 2: [1.0] * 7, 4: [1.0, 0.0, 1.0, 1.0, 1.0, None, 1.0]}
"""Version -> the score of each task; 4 is the last."""


def journal_of(folder: Path) -> JournalReader:
    return JournalReader(folder / "journal.sqlite")


def test_a_task_of_each_change_is_shown_and_all_are_counted(tmp_path: Path) -> None:
    found = before_and_after(journal_of(write_run(tmp_path / "run", LEARNED)))
    assert found is not None
    assert (found.before, found.after, found.num_tasks) == ("step 0", "step 4", 7)
    # Task 6 has no verdict on its last answer.
    assert found.counts == {"wrong to right": 4, "right to wrong": 1, "right twice": 1, "wrong twice": 0}
    shown = [(task.task_id.partition(":")[2], task.change) for task in found.tasks]
    assert shown == [
        *((task, "wrong to right") for task in ("1", "3", "4")),
        *(("2", "right to wrong"), ("5", "right twice")),
    ]
    first = found.tasks[0]
    assert (first.prompt, first.before.outcome, first.after.outcome) == ("1+1=", "wrong", "correct")
    assert first.before.text is not None and first.before.text != first.after.text


@pytest.mark.parametrize("versions", [(0,), (4,), ()])
def test_one_version_alone_has_no_before_and_after(tmp_path: Path, versions: tuple[int, ...]) -> None:
    folder = write_run(tmp_path / "run", {version: LEARNED[version] for version in versions})
    assert before_and_after(journal_of(folder)) is None
    assert sampled_over_k(journal_of(folder)) is None


def test_the_runs_own_samples_give_pass_at_k(tmp_path: Path) -> None:
    # Two samples of each of two tasks: pass@1 of the base is (1/2 + 0) / 2, pass@2 (1 + 0) / 2.
    samples = {0: [[1.0, 0.0], [0.0, 0.0]], 4: [[1.0, 1.0], [1.0, 0.0]]}
    folder = write_run(tmp_path / "run", {0: [1.0, 0.0], 4: [1.0, 1.0]}, samples=samples)
    found = sampled_over_k(journal_of(folder))
    assert found is not None and found.sampled == ["base", "step 4"]
    assert [curve["mean"] for curve in found.curves["pass"]] == [[0.25, 0.5], [0.75, 1.0]]
    assert list(found.curves) == ["pass"]


def test_answers_of_asyncrl_eval_are_compared_as_those_of_the_run(tmp_path: Path) -> None:
    evaluate_run(tmp_path)
    (measured,) = read_measured(tmp_path)
    found = measured_before_and_after(measured)
    assert found is not None and not found.is_greedy
    assert (found.before, found.after, found.num_tasks) == ("base", "step 40 (last)", 12)
    assert found.counts == {"wrong to right": 6, "right to wrong": 0, "right twice": 0, "wrong twice": 6}
    assert [task.task_id for task in found.tasks] == [
        "task:0",
        "task:1",
        "task:2",
        "task:6",
        "task:7",
        "task:8",
    ]
    first = found.tasks[0]
    assert (first.before.text, first.after.text) == ("it is wrong <i>0", "it is correct <i>0")


@pytest.mark.parametrize("lacking", (0, 1))
def test_results_without_answers_have_no_before_and_after(tmp_path: Path, lacking: int) -> None:
    evaluate_run(tmp_path)
    (measured,) = read_measured(tmp_path)
    del measured.rows[lacking]["answers"]
    assert measured_before_and_after(measured) is None
    # They are no part of what the report says of a model.
    assert all("answers" not in row for row in measured.short_rows())


def test_models_that_were_asked_alike_stand_side_by_side_the_base_model_first(tmp_path: Path) -> None:
    assert read_measured(tmp_path) == []
    evaluate_run(tmp_path)
    with AnswerStore(tmp_path / ANSWERS) as store:
        store.keep_result("held-out", "alike", "earlier", "step 8", row(BASE), num_samples=K)
        store.keep_result("held-out", "otherwise", "base", "base", row(BASE), num_samples=K)
    other, measured = read_measured(tmp_path)
    assert (measured.models, other.models) == (["base", "step 8", "step 40 (last)"], ["base"])
    assert measured.compared is not None
    assert measured.compared["models"] == measured.models
    assert len(measured.compared["curves"]["pass"]) == 3
    assert "training narrowed" in measured.compared["sentences"][-1]
    assert not any(name.endswith("scores") or name == "tallies" for name in measured.short_rows()[0])


def test_a_result_of_most_likely_answers_alone_has_no_curves(tmp_path: Path) -> None:
    greedy = {name: value for name, value in row(BASE).items() if name not in ("tallies", "curves")}
    with AnswerStore(tmp_path / ANSWERS) as store:
        store.keep_result("sums", "s", "m", "base", greedy, num_samples=0)
    (measured,) = read_measured(tmp_path)
    assert measured.compared is None and measured.table().rows
