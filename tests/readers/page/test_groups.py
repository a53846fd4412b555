"""Groups and faults as the page reads them."""

from array import array
from pathlib import Path
from typing import Any

from fakes.finished_run import edit_journal

from asyncrl.readers.page.groups import read_group
from asyncrl.readers.page.runs import Run
from asyncrl.readers.page.views import read_causes


def group_of(run_folder: Path, number: int) -> dict[str, Any]:
    group = read_group(Run("run", run_folder), number)
    assert group is not None
    return group


def test_each_token_comes_with_its_text_version_and_logprob(run_folder: Path) -> None:
    first, second = group_of(run_folder, 0)["trajectories"][0]["segments"]
    assert [(text, logprob) for text, _, logprob in first["tokens"]] == [("{", -0.5), ("3", -0.25)]
    assert (first["version"], second["version"]) == (0, 1)
    assert second["tokens"][0][0] == "<|end|>"
    assert second["is_continued"]


def test_staleness_is_the_step_less_the_version_and_unknown_before_a_take(run_folder: Path) -> None:
    trained, waiting = group_of(run_folder, 0), group_of(run_folder, 2)
    # Trained at step 2, by version 1; written by versions 0 and 1.
    assert [segment["staleness"] for segment in trained["trajectories"][0]["segments"]] == [1, 0]
    assert waiting["trajectories"][0]["segments"][0]["staleness"] is None


def test_chunks_of_one_version_are_one_segment(run_folder: Path) -> None:
    chunk = (array("i", [8]).tobytes(), array("f", [-0.5]).tobytes())
    edit_journal(run_folder, "INSERT INTO segments VALUES ('00000002-00', 1, 1, 0, ?, ?)", chunk)
    (segment,) = group_of(run_folder, 2)["trajectories"][0]["segments"]
    assert [text for text, _, _ in segment["tokens"]] == ["7", "8"]


def test_the_teachers_log_prob_comes_last_of_a_tokens_numbers(run_folder: Path) -> None:
    # A response of three tokens.
    scores = [0.0, -0.125, -0.25]
    row = (array("f", scores).tobytes(),)
    edit_journal(run_folder, "INSERT INTO teacher_logprobs VALUES ('00000000-00', ?, NULL)", row)
    segments = group_of(run_folder, 0)["trajectories"][0]["segments"]
    assert [token[6] for part in segments for token in part["tokens"]] == scores


def test_faults_whose_retry_gave_a_verdict_are_told_with_their_first_traceback(run_folder: Path) -> None:
    rows = (("KeyError at v.py:3", 39, "train:1", "d", "frames"), ("the worker died", 1, "train:2", "e", ""))
    edit_journal(run_folder, "INSERT INTO retried_faults VALUES (?, ?, ?, ?, ?)", *rows)
    edit_journal(
        run_folder,
        "UPDATE trajectories SET outcome = 'fault', detail = 'the verifier raised KeyError: 1 (v.py:3)' "
        "WHERE trajectory_id = '00000000-00'",
    )
    both, retried = read_causes(Run("run", run_folder))
    assert (both["cause"], both["num_verdicts"], both["num_retried"]) == ("KeyError at v.py:3", 1, 39)
    assert (both["trace"], both["trajectory_id"]) == ("frames", None)
    assert (retried["num_verdicts"], retried["num_retried"], retried["trace"]) == (0, 1, None)
    assert retried["task_id"] == "train:2"
