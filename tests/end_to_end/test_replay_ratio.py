"""A whole run on real engines that trains its groups again, killed half-way."""

import signal
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

NUM_STEPS = 8
MAX_USES = 3


@pytest.mark.slow
def test_groups_are_trained_again_within_their_bounds_also_after_a_crash(tmp_path: Path) -> None:
    run = WholeRun(
        tmp_path,
        rollout={"groups_per_batch": 4, "samples_per_group": 8, "max_staleness": 3, "oversampling": 1.0},
        replay={"repeated_groups_per_batch": 4, "max_uses": MAX_USES},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 2},
    ).start()
    run.wait_for_step(4)
    run.kill(signal.SIGKILL)
    assert run.finish() == -signal.SIGKILL
    assert run.start().finish() == 0, run.output()
    uses = run.query("SELECT group_id, count(*) FROM repetitions GROUP BY group_id")
    assert uses, "nothing was repeated"
    assert max(count for _, count in uses) <= MAX_USES - 1
    ((worst,),) = run.query(
        "SELECT max(r.taken_version - version) FROM repetitions r JOIN trajectories USING (group_id) "
        "JOIN segments USING (trajectory_id)"
    )
    assert worst <= 3
    counters = dict(run.query("SELECT name, value FROM counters"))
    ((again,),) = run.query(
        "SELECT sum(length(tokens) / 4) FROM repetitions JOIN trajectories USING (group_id) "
        "JOIN segments USING (trajectory_id) WHERE advantage IS NOT NULL"
    )
    assert counters["tokens_repeated"] == again
    rows = run.steps()
    assert sum(row["num_sequences"] for row in rows[-2:]) > 2 * 4 * 8
