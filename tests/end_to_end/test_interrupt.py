"""Whole runs on real engines: a publish retracts, aborts or drains what is generated, in short rounds."""

from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

NUM_STEPS = 6


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", ["retract", "abort"])
def test_trajectories_outlive_publishes_that_do_not_go_on_in_place(tmp_path: Path, interrupt: str) -> None:
    run = run_to_its_end(tmp_path, interrupt)
    assert num_mixed(run) > 0, "no trajectory outlived a publish"
    ((num_continued,),) = run.query("SELECT count(*) FROM segments WHERE is_continued AND position > 0")
    if interrupt == "retract":
        assert num_continued == 0


@pytest.mark.slow
def test_with_drain_every_trajectory_has_one_version_and_batches_are_still_made_ahead(tmp_path: Path) -> None:
    run = run_to_its_end(tmp_path, "drain", max_staleness=2)
    assert num_mixed(run) == 0
    ((num_continued,),) = run.query("SELECT count(*) FROM segments WHERE is_continued")
    assert num_continued == 0
    assert all(row["drain_seconds"] > 0 for row in run.steps())
    ((num_stale,),) = run.query(
        "SELECT count(*) FROM segments JOIN trajectories USING (trajectory_id) JOIN "
        "groups USING (group_id) WHERE version < taken_version"
    )
    assert num_stale > 0


def run_to_its_end(folder: Path, interrupt: str, **rollout: int) -> WholeRun:
    """Several hundred answers of up to 24 tokens in rounds of 10; no token is unaccounted for."""
    run = WholeRun(
        folder,
        rollout={
            "groups_per_batch": 8,
            "samples_per_group": 8,
            "max_new_tokens": 24,
            "stream_interval_tokens": 4,
            "interrupt": interrupt,
            "tokens_per_round": 10,
            **rollout,
        },
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
    check_books(run)
    return run


def num_mixed(run: WholeRun) -> int:
    """Trajectories with tokens of several versions."""
    ((count,),) = run.query(
        "SELECT count(*) FROM (SELECT trajectory_id FROM segments GROUP BY trajectory_id "
        "HAVING count(DISTINCT version) > 1)"
    )
    return count


def check_books(run: WholeRun) -> None:
    """Generated = trained + dropped + queued, in tokens."""
    rows = run.query("SELECT name, value FROM counters")
    counters = dict(rows)
    dropped = sum(value for name, value in counters.items() if name.startswith("tokens_dropped:"))
    queued = run.query(
        "SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING (trajectory_id) "
        "JOIN groups USING (group_id) WHERE state IN ('open', 'ready')"
    )[0][0]
    assert counters["tokens_generated"] == counters["tokens_trained"] + dropped + queued
