"""Faults of a run, as the page is told them."""

import sqlite3
from pathlib import Path

from asyncrl.readers.page.faults import read_causes
from asyncrl.readers.page.runs import Run


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
