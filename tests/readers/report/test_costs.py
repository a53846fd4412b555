"""Hours and shares of time, from what starts used and steps measured."""

from asyncrl.journal.starts import Usage
from asyncrl.readers.report.costs import time_of

ONE_HOUR = [Usage("run", 3600.0, num_gpus=2), Usage("server 0", 3600.0, 7200.0, num_gpus=2)]
STEP = {
    "step_seconds": 2.0,
    "train_seconds": 1.0,
    "wait_seconds": 0.5,
    "publish_seconds": 0.25,
    "trainer_idle_share": 0.25,
    "rollout_idle_share": 0.125,
}


def test_a_process_of_another_machine_leaves_the_cpu_hours_unknown() -> None:
    time = time_of({1.0: [*ONE_HOUR, Usage("server 1", 3600.0, None)]}, [])
    assert time.cpu_hours is None and time.gpu_hours == 2.0
    assert [process.cpu_hours for process in time.processes] == [2.0, None]


def test_a_run_that_recorded_nothing_claims_nothing() -> None:
    time = time_of({}, [{"step_seconds": 2.0}])
    assert (time.wall_seconds, time.cpu_hours, time.gpu_hours, time.step_seconds) == (None, None, None, 2.0)


def test_parts_are_shares_of_the_steps_and_add_up() -> None:
    # Of 2 s, 0.25 s are in no part.
    assert time_of({}, [STEP] * 3).step_shares == {
        "training": 0.5,
        "waiting for rollouts": 0.25,
        "publishing weights": 0.125,
        "saving checkpoints": 0.0,
        "draining servers": 0.0,
        "the rest": 0.125,
    }


def test_idle_shares_leave_the_start_up_out() -> None:
    time = time_of({}, [{**STEP, "trainer_idle_share": 0.9}, *[STEP] * 9])
    assert (time.trainer_idle_share, time.rollout_idle_share) == (0.25, 0.125)


def test_a_run_that_ended_before_its_first_step_has_no_shares() -> None:
    time = time_of({}, [])
    assert time.step_shares == {} and time.trainer_idle_share is None


def test_a_wait_that_began_before_its_step_counts_from_the_step_on() -> None:
    row = {"step_seconds": 2.0, "train_seconds": 0.5, "drain_seconds": 0.5, "wait_seconds": 4.0}
    shares = time_of({}, [row]).step_shares
    assert shares["waiting for rollouts"] == 0.5 and shares["draining servers"] == 0.25
    assert sum(shares.values()) == 1.0
