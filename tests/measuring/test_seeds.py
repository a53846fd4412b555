"""Runs on several seeds: what counts as learned, and what is not run again."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.seeds import SeedRun, dip, read_run, table, train


def evaluation(when: str, accuracy: float) -> dict[str, Any]:
    names = ("greedy_accuracy", "greedy_low", "greedy_high", "avg_at_k", "avg_low", "avg_high")
    values = dict.fromkeys(names, accuracy)
    return {"kind": "eval", "when": when, "step": 0, "k": 2, "response_tokens_mean": 4.0, **values}


def seed_run(seed: int, before: float, after: float) -> SeedRun:
    return SeedRun(seed, evaluation("before", before), [], evaluation("after", after), minutes=9.0)


def test_a_seed_learned_when_it_doubled_and_reached_the_target():
    assert seed_run(0, 0.4, 0.8).is_learned()
    assert not seed_run(0, 0.41, 0.81).is_learned()
    assert not seed_run(0, 0.3, 0.79).is_learned()


def test_the_table_has_a_row_per_seed_and_the_mean_with_its_interval_over_seeds():
    rows = table([seed_run(0, 0.3, 0.8), seed_run(1, 0.4, 0.9)]).splitlines()
    assert rows[2].startswith("| 0 | 30% (30-30) | 80% (80-80) |")
    # Two values 0.1 apart: 12.706 x 0.0707 / sqrt(2).
    assert rows[-1].startswith("| mean | 35.0 ± 63.5% | 85.0 ± 63.5% |")


def test_a_dip_is_a_fall_below_the_best_from_95_percent_on():
    run = seed_run(0, 0.2, 0.99)
    values = [0.9, 0.3, 0.96, 0.98, 0.91, 0.99, 0.95]
    during = [evaluation("during", value) | {"step": 5 * i} for i, value in enumerate(values, start=1)]
    found = dip(dataclasses.replace(run, during=during))
    assert found == (
        "seed 0: 95% from step 15 on, largest dip 7.0 points, to 91% (91-91) at step 25, of 5 evaluations"
    )
    assert dip(run) == "seed 0: never at 95%"


def test_a_complete_seed_is_not_run_again_and_one_that_fails_is_said(tmp_path: Path):
    folder, nowhere = tmp_path / "seed-0", tmp_path / "nowhere.yaml"
    folder.mkdir()
    with pytest.raises(SystemExit, match="Seed 0 ended with 2"):
        train(nowhere, 0, folder, [])
    rows = [evaluation("before", 0.3), evaluation("after", 0.8)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(nowhere, 0, folder, [])
    assert read_run(0, folder).is_learned()
