"""Runs that differ in their seed alone."""

from pathlib import Path

import pytest
from fakes.finished_run import EVALUATION, write_run

from asyncrl.observe.metrics.metrics_file import MetricsWriter
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.seeds import group_by_seed, mean_over_runs


def report_of(folder: Path, *, seed: int, accuracy: float, **settings: object) -> RunReport:
    run = write_run(folder)
    row = EVALUATION | {"greedy_accuracy": accuracy, "greedy_low": 0.1, "greedy_high": 0.9}
    with MetricsWriter(run / "metrics.jsonl") as writer:
        writer.evaluation({"step": 10, "when": "after", **row})
    report = collect(run)
    recipe = (
        report.recipe | {"seed": seed, "name": f"run {seed}", "model": {"path": "m"}, "data": {}} | settings
    )
    seeds = report.seeds.model_copy(update={"recipe": seed})
    return report.model_copy(update={"recipe": recipe, "seeds": seeds})


def test_runs_of_three_seeds_have_one_mean_and_others_stay_apart(tmp_path: Path) -> None:
    reports = []
    for seed, accuracy in ((0, 0.5), (1, 0.6), (2, 0.7)):
        (tmp_path / str(seed)).mkdir()
        reports.append(report_of(tmp_path / str(seed), seed=seed, accuracy=accuracy))
    (tmp_path / "other").mkdir()
    reports.append(report_of(tmp_path / "other", seed=3, accuracy=0.1, memory_gib=4.0))
    (group,) = group_by_seed(reports)
    assert group.seeds == [0, 1, 2]
    last = group.measures["last greedy"]
    # 0.1 standard deviation, 4.303 x 0.1 / sqrt(3) = 0.2484
    assert (last.mean, last.low, last.high) == pytest.approx((0.6, 0.3516, 0.8484), abs=1e-4)
    assert last.num_runs == 3


def test_the_same_seed_twice_is_no_group_of_seeds(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    reports = [report_of(tmp_path / name, seed=0, accuracy=0.5) for name in ("a", "b")]
    assert group_by_seed(reports) == []


def test_many_runs_have_nearly_the_normal_interval() -> None:
    values = [0.0, 1.0] * 50
    found = mean_over_runs(values)
    assert found.high - found.low == pytest.approx(2 * 1.984 * 0.5025 / 10, rel=1e-3)
