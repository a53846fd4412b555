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


@pytest.mark.slow
def test_trainers_dead_at_the_start_and_later_and_a_dead_server_are_replaced_and_ctrl_c_stops_all(
    tmp_path: Path,
) -> None:
    run = WholeRun(tmp_path, trainer={"num_steps": 400}).start()
    run.wait_for(lambda: bool(run.children("asyncrl.trainer.main")), "the trainer's start")
    run.child("asyncrl.trainer.main").kill()
    run.wait_for_step(2)
    assert "It starts again" in run.output()
    run.child("sglang.launch_server").kill()
    run.wait_for(lambda: "restarts" in run.output() or "leaves" in run.output(), "the server's restart")
    run.wait_for_step(len(run.steps()) + 2)
    checkpoints = run.run_folder / "checkpoints"
    run.wait_for(lambda: bool(list(checkpoints.glob("step-*/checkpoint.json"))), "a checkpoint")
    run.child("asyncrl.trainer.main").kill()
    run.wait_for(lambda: "from its last checkpoint" in run.output(), "the trainer's restart")
    run.wait_for_step(len(run.steps()) + 3)
    family = run.family()
    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    assert not wait_for_end(family)
    counters = dict(run.query("SELECT name, value FROM counters"))
    live = run.query("SELECT sum(length(tokens) / 4) FROM segments")[0][0]
    dropped = sum(value for name, value in counters.items() if name.startswith("tokens_dropped"))
    assert counters["tokens_generated"] - dropped == live
    assert counters["tokens_trained"] <= live
