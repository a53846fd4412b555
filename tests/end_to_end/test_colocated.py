"""A whole run whose server sleeps while its trainer steps: it learns, and both may die meanwhile."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fakes.whole_run import WholeRun


def is_asleep(run: WholeRun) -> bool:
    command = [sys.executable, "-m", "asyncrl.commands.main", "servers", str(run.run_folder), "list"]
    return "sleeping" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def stopped_trainer_and_sleeping_server(run: WholeRun) -> psutil.Process:
    """The trainer, stopped with a batch in hand or on its way, while the server sleeps."""
    trainer = run.child("asyncrl.trainer.main")
    trainer.suspend()
    run.wait_for(lambda: is_asleep(run), "the server's sleep")
    return trainer


@pytest.mark.slow
def test_a_colocated_run_learns_though_server_and_trainer_are_killed_while_the_server_sleeps(
    tmp_path: Path,
) -> None:
    run = WholeRun(
        tmp_path,
        placement={"colocated": True, "device": "cpu"},
        trainer={"num_steps": 30},
        evaluation={"every_steps": 5},
    ).start()
    run.wait_for_step(2)
    trainer = stopped_trainer_and_sleeping_server(run)
    run.child("sglang.launch_server").kill()
    trainer.resume()
    run.wait_for(lambda: "server 0 restarts" in run.output(), "the server's restart")
    run.wait_for_step(len(run.steps()) + 4)
    stopped_trainer_and_sleeping_server(run).kill()
    run.wait_for(lambda: "The trainer restarts from" in run.output(), "the trainer's restart")
    assert run.finish() == 0, run.output()
    # Each step once, each token accounted for.
    assert run.query("SELECT state, count(*) FROM groups GROUP BY state") == [("trained", 30 * 8)]
    counters = dict(run.query("SELECT name, value FROM counters"))
    dropped = sum(value for name, value in counters.items() if name.startswith("tokens_dropped"))
    assert counters["tokens_generated"] == counters["tokens_trained"] + dropped
    before, after = run.evaluation("before"), run.evaluation("after")
    assert after["greedy_accuracy"] > before["greedy_accuracy"] + 0.5, run.output()
