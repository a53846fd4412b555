"""Answers that a run stored of its base model and of its last version: which are shown, and pass@k."""

from pathlib import Path

import pytest
from fakes.compared_runs import write_run

from asyncrl.journal.reader import JournalReader
from asyncrl.readers.report.answers import MOST_CHARACTERS, before_and_after, cut, sampled_over_k

LEARNED = {0: [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], 2: [1.0] * 7, 4: [1.0, 0.0, 1.0, 1.0, 1.0, None, 1.0]}
"""Version -> the score of each task; 4 is the last."""


def journal_of(folder: Path) -> JournalReader:
    return JournalReader(folder / "journal.sqlite")


def test_a_task_of_each_change_is_shown_and_all_are_counted(tmp_path: Path) -> None:
    found = before_and_after(journal_of(write_run(tmp_path / "run", LEARNED)))
    assert found is not None
    assert (found.before_step, found.after_step) == (0, 4)
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


def test_a_long_text_keeps_its_ends_and_says_how_much_is_missing() -> None:
    text = "a" * MOST_CHARACTERS + "bc"
    shown = cut(text)
    assert shown.startswith("aaa") and shown.endswith("bc")
    assert f"[... 2 of {MOST_CHARACTERS + 2:,} characters are not shown ...]" in shown
    assert cut(text[:MOST_CHARACTERS]) == text[:MOST_CHARACTERS]
