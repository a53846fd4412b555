"""Whole runs whose launcher, server or trainer is killed: nothing is lost, nothing is left."""

import signal
from pathlib import Path

import pytest
from fakes.processes import wait_for_end
from fakes.whole_run import WholeRun

from asyncrl.run.status import read_status, words_of_state


@pytest.mark.exhaustive
def test_kill_9_of_the_launcher_leaves_no_orphan_and_loses_nothing(tmp_path: Path) -> None:
    run = WholeRun(tmp_path).start()
    run.wait_for_step(6)
    family = run.family()
    run.kill(signal.SIGKILL)
    run.finish()
    assert not wait_for_end(family)
    status = read_status(run.run_folder)
    assert status is not None and status["total_steps"] == 12
    assert words_of_state(status) == "no longer running"
    admitted = run.query("SELECT count(*) FROM groups")[0][0]
    tokens = run.query("SELECT trajectory_id, position, tokens, version FROM segments")
    assert run.start().finish() == 0, run.output()
    assert "resuming" in run.output()
    # What was confirmed before the kill is still there, token for token, and was not generated again.
    assert set(tokens) <= set(run.query("SELECT trajectory_id, position, tokens, version FROM segments"))
    assert run.query("SELECT state, count(*) FROM groups GROUP BY state") == [("trained", 12 * 8)]
    assert admitted <= 12 * 8
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"]
