"""A run under what Slurm sends as a job nears its end, by stand-ins for Slurm."""

import signal
from pathlib import Path

import psutil
import pytest
from end_to_end.test_interrupt import check_books
from fakes.processes import wait_for_end
from fakes.whole_run import WholeRun


def send_as_slurm(run: WholeRun) -> list[psutil.Process]:
    """At a time limit, at scancel and when a job is preempted: SIGCONT, then SIGTERM, to each process of the
    job step's control group, whatever sessions they made, in the order of their start."""
    family = run.family()
    for number in (signal.SIGCONT, signal.SIGTERM):
        for process in family:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
    return family


@pytest.mark.slow
def test_a_run_all_of_whose_processes_get_sigterm_saves_its_step_and_resumes(tmp_path: Path) -> None:
    seconds = {"stop_timeout_seconds": 20.0, "checkpoint_every_steps": 100}
    run = WholeRun(tmp_path, trainer={"num_steps": 12, "learning_rate": 1e-2, **seconds}).start()
    run.wait_for_step(3)
    family = send_as_slurm(run)
    assert run.finish() == 130, run.output()
    assert not wait_for_end(family)
    trained = len(run.steps())
    (checkpoint,) = (run.run_folder / "checkpoints").glob("step-*")
    # Nothing that was trained is trained again.
    assert checkpoint.name == f"step-{trained}"
    run.set("trainer.num_steps", trained + 2)
    assert run.start().finish() == 0, run.output()
    assert f"at step {trained + 1}: " in run.output()
    assert len(run.steps()) == trained + 2
    check_books(run)
    assert run.query("SELECT count(*) FROM trajectories WHERE outcome = 'fault'") == [(0,)]
