"""Whole runs on real engines: a publish retracts or aborts what is generated, in rounds of few tokens."""

from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

NUM_STEPS = 6


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", ["retract", "abort"])
def test_trajectories_outlive_publishes_that_do_not_go_on_in_place(tmp_path: Path, interrupt: str) -> None:
    rollout = {
        "groups_per_batch": 8,
        "samples_per_group": 8,
        "max_new_tokens": 24,
        "stream_interval_tokens": 4,
        "interrupt": interrupt,
        "tokens_per_round": 10,
    }
    run = WholeRun(
        tmp_path,
        rollout=rollout,
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 3},
    )
    assert run.start().finish() == 0, run.output()
    assert len(run.steps()) == NUM_STEPS
    ((num_trained,),) = run.query("SELECT count(*) FROM groups WHERE state = 'trained'")
    assert num_trained == NUM_STEPS * 8
    # Rounds of 10 tokens: a longer response was parked and resumed.
    ((longest,),) = run.query(
        "SELECT max(n) FROM (SELECT sum(length(tokens) / 4) AS n FROM segments GROUP BY trajectory_id)"
    )
    assert longest > 10
    ((num_mixed,),) = run.query(
        "SELECT count(*) FROM (SELECT trajectory_id FROM segments GROUP BY trajectory_id "
        "HAVING count(DISTINCT version) > 1)"
    )
    ((num_continued,),) = run.query("SELECT count(*) FROM segments WHERE is_continued AND position > 0")
    assert num_mixed > 0, "no trajectory outlived a publish"
    if interrupt == "retract":
        assert num_continued == 0
    rows = run.query("SELECT name, value FROM counters")
    counters = dict(rows)
    dropped = sum(value for name, value in counters.items() if name.startswith("tokens_dropped:"))
    queued = run.query(
        "SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING (trajectory_id) "
        "JOIN groups USING (group_id) WHERE state IN ('open', 'ready')"
    )[0][0]
    assert counters["tokens_generated"] == counters["tokens_trained"] + dropped + queued
