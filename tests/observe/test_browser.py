"""The data of the trajectory page."""

import sqlite3
from array import array
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.observe.browser import Browser


def test_each_token_comes_with_its_text_version_and_logprob(run_folder: Path) -> None:
    group = Browser(run_folder).group(0)
    assert group is not None
    first, second = group["trajectories"][0]["segments"]
    assert [(text, logprob) for text, _, logprob in first["tokens"]] == [("{", -0.5), ("3", -0.25)]
    assert (first["version"], second["version"]) == (0, 1)
    assert second["tokens"][0][0] == "<|end|>"
    assert second["is_continued"]


def test_staleness_is_the_step_less_the_version_and_unknown_before_a_take(run_folder: Path) -> None:
    browser = Browser(run_folder)
    trained, waiting = browser.group(0), browser.group(2)
    assert trained is not None and waiting is not None
    # Trained at step 2, by version 1; written by versions 0 and 1.
    assert [segment["staleness"] for segment in trained["trajectories"][0]["segments"]] == [1, 0]
    assert waiting["trajectories"][0]["segments"][0]["staleness"] is None


def test_chunks_of_one_version_are_one_segment(run_folder: Path) -> None:
    db = sqlite3.connect(run_folder / "journal.sqlite")
    chunk = (array("i", [8]).tobytes(), array("f", [-0.5]).tobytes())
    db.execute("INSERT INTO segments VALUES ('00000002-00', 1, 1, 0, ?, ?)", chunk)
    db.commit()
    db.close()
    group = Browser(run_folder).group(2)
    assert group is not None
    (segment,) = group["trajectories"][0]["segments"]
    assert [text for text, _, _ in segment["tokens"]] == ["7", "8"]


def test_the_overview_says_how_far_the_run_is(run_folder: Path) -> None:
    assert Browser(run_folder).overview() == {
        "name": "sums",
        "fates": {"trained": 1, "queued": 1, "dropped: stale": 1},
        "steps": [2, 2],
        "greedy_accuracy": 0.8,
        "evaluated_step": 10,
    }


def test_a_folder_that_is_not_a_runs_is_refused(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        Browser(tmp_path / "nothing")
    (run_folder / "journal.sqlite").write_text("not a database, but long enough to be looked at")
    with pytest.raises(InputError, match="cannot be read as the journal"):
        Browser(run_folder)
