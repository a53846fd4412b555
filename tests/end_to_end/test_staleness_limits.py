"""A whole run on real engines with oversampling and both limits on staleness in flight."""

from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

NUM_STEPS = 8


@pytest.mark.slow
def test_what_became_too_stale_is_dropped_or_masked_and_every_token_is_accounted_for(tmp_path: Path) -> None:
    rollout = {
        "groups_per_batch": 8,
        "samples_per_group": 8,
        "max_new_tokens": 24,
        "stream_interval_tokens": 4,
        "max_staleness": 3,
        "oversampling": 2.0,
        "abort_staleness": 1,
        "mask_staleness": 0,
    }
    run = WholeRun(
        tmp_path,
        rollout=rollout,
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 4},
    )
    assert run.start().finish() == 0, run.output()
    rows = run.steps()
    assert len(rows) == NUM_STEPS
    assert all(row["staleness_at_take"] <= 1 and row["staleness_max"] <= 0 for row in rows)
    assert sum(row["too_stale_tokens"] for row in rows) > 0, "nothing was ever masked"
    ((worst,),) = run.query(
        "SELECT max(taken_version - version) FROM segments JOIN trajectories USING (trajectory_id) "
        "JOIN groups USING (group_id) WHERE state = 'trained'"
    )
    assert worst <= 1
    counters = dict(run.query("SELECT name, value FROM counters"))
    dropped = sum(value for name, value in counters.items() if name.startswith("tokens_dropped:"))
    ((queued,),) = run.query(
        "SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING (trajectory_id) "
        "JOIN groups USING (group_id) WHERE state IN ('open', 'ready')"
    )
    assert counters["tokens_generated"] == counters["tokens_trained"] + dropped + queued
