"""Groups and faults as the page reads them."""

import sqlite3
from array import array
from pathlib import Path

from asyncrl.readers.page.groups import read_group
from asyncrl.readers.page.runs import Run
from asyncrl.readers.page.views import read_causes


def test_each_token_comes_with_its_text_version_and_logprob(run_folder: Path) -> None:
    group = read_group(Run("run", run_folder), 0)
    assert group is not None
    first, second = group["trajectories"][0]["segments"]
    assert [(text, logprob) for text, _, logprob in first["tokens"]] == [("{", -0.5), ("3", -0.25)]
    assert (first["version"], second["version"]) == (0, 1)
    assert second["tokens"][0][0] == "<|end|>"
    assert second["is_continued"]


def test_staleness_is_the_step_less_the_version_and_unknown_before_a_take(run_folder: Path) -> None:
    run = Run("run", run_folder)
    trained, waiting = read_group(run, 0), read_group(run, 2)
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
    group = read_group(Run("run", run_folder), 2)
    assert group is not None
    (segment,) = group["trajectories"][0]["segments"]
    assert [text for text, _, _ in segment["tokens"]] == ["7", "8"]


def test_the_teachers_log_prob_comes_last_of_a_tokens_numbers(run_folder: Path) -> None:
    db = sqlite3.connect(run_folder / "journal.sqlite")
    ((size,),) = db.execute(
        "SELECT sum(length(tokens)) / 4 FROM segments WHERE trajectory_id = '00000000-00'"
    ).fetchall()
    scores = array("f", [-0.125 * i for i in range(size)]).tobytes()
    db.execute("INSERT INTO teacher_logprobs VALUES ('00000000-00', ?, NULL)", (scores,))
    db.commit()
    db.close()
    group = read_group(Run("run", run_folder), 0)
    assert group is not None
    tokens = [token for part in group["trajectories"][0]["segments"] for token in part["tokens"]]
    assert [token[6] for token in tokens] == [-0.125 * i for i in range(size)]


def test_faults_whose_retry_gave_a_verdict_are_told_with_their_first_traceback(run_folder: Path) -> None:
    connection = sqlite3.connect(run_folder / "journal.sqlite")
    connection.execute(
        "INSERT INTO retried_faults VALUES ('KeyError at v.py:3', 39, 'train:1', 'd', 'frames')"
    )
    connection.execute("INSERT INTO retried_faults VALUES ('the worker died', 1, 'train:2', 'e', '')")
    connection.execute(
        "UPDATE trajectories SET outcome = 'fault', detail = 'the verifier raised KeyError: 1 (v.py:3)' "
        "WHERE trajectory_id = '00000000-00'"
    )
    connection.commit()
    connection.close()
    both, retried = read_causes(Run("run", run_folder))
    assert (both["cause"], both["num_verdicts"], both["num_retried"]) == ("KeyError at v.py:3", 1, 39)
    assert (both["trace"], both["trajectory_id"]) == ("frames", None)
    assert (retried["num_verdicts"], retried["num_retried"], retried["trace"]) == (0, 1, None)
    assert retried["task_id"] == "train:2"
