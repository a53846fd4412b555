"""What a run comes to, from its files."""

import json
from pathlib import Path

import pytest

from asyncrl.observe.metrics.summary import summarize


def test_times_are_shares_of_the_steps_and_add_up(run_folder: Path, generated: dict[str, int]) -> None:
    summary = summarize(run_folder, generated)
    # Steps of 2 s: 1 s training, 0.5 s waiting, 0.25 s publishing, 0.25 s unmeasured.
    assert summary.time_shares == {
        "training": 0.5,
        "waiting for rollouts": 0.25,
        "publishing weights": 0.125,
        "saving checkpoints": 0.0,
        "the rest": 0.125,
    }
    assert summary.training_seconds == 20.0


def test_idle_shares_leave_the_start_up_out(run_folder: Path, generated: dict[str, int]) -> None:
    summary = summarize(run_folder, generated)
    assert summary.trainer_idle_share == pytest.approx(0.25)
    assert summary.rollout_idle_share == pytest.approx(0.125)


def test_groups_of_the_books_are_the_journals(run_folder: Path, generated: dict[str, int]) -> None:
    books = summarize(run_folder, generated).conservation
    assert books.missing_tokens() == 0
    assert books.groups == {"trained": 1, "dropped: stale": 1, "queued": 1}


def test_a_run_that_ended_before_its_first_step_still_has_a_summary(tmp_path: Path) -> None:
    summary = summarize(tmp_path, {"generated": 0, "trained": 0})
    assert summary.time_shares == {}
    assert summary.trainer_idle_share is None


def test_a_wait_that_began_before_its_step_counts_from_the_step_on(tmp_path: Path) -> None:
    row = {"kind": "step", "step": 1, "step_seconds": 2.0, "train_seconds": 0.5, "drain_seconds": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row | {"wait_seconds": 4.0}) + "\n")
    shares = summarize(tmp_path, {"generated": 0, "trained": 0}).time_shares
    assert shares["waiting for rollouts"] == 0.5 and shares["draining servers"] == 0.25
    assert sum(shares.values()) == 1.0
