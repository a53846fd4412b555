"""The comparison of whole loops: what a curve says of a time, and how seeds are paired."""

import pytest

from tests.benchmarks import loop_bench
from tests.benchmarks.loop_bench import ALONE, APART, TRL, WHOLE, Row, table


def row_of(seed: int, trl: float, ours: float, *, last: float = 0.97) -> Row:
    curves = {
        TRL: [(0.0, 0.2), (trl, 0.96)],
        WHOLE: [(0.0, 0.2), (1.5 * ours, last)],
        APART: [(0.0, 0.2), (1.2 * ours, last)],
        ALONE: [(0.0, 0.2), (ours / 2, 0.94), (ours, last)],
    }
    return Row("sums", seed, 0.1, curves, {TRL: 0.8, WHOLE: 0.5, APART: 0.45, ALONE: 0.4})


def test_the_time_is_that_of_the_first_evaluation_at_the_target() -> None:
    assert row_of(0, 20.0, 10.0).seconds_to(ALONE) == 10.0
    assert row_of(0, 20.0, 10.0, last=0.949).seconds_to(ALONE) is None


def test_ratios_pair_the_runs_of_a_seed_and_seeds_that_never_arrived_are_counted_apart() -> None:
    lines = table([row_of(0, 20.0, 10.0), row_of(1, 30.0, 10.0), row_of(2, 30.0, 9.0, last=0.9)]).splitlines()
    theirs, _, _, ours = lines[2:]
    assert theirs.startswith(f"| {TRL} | 26.7 ")
    assert "| 10.0 ± 0.0 (2 of 3 seeds) | 2.50 ± 6.35 |" in ours
    assert ours.endswith("| 0.400 ± 0.000 | 2.00 ± 0.00 |")


def test_the_figure_is_drawn_of_rows(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bench, "FIGURE", tmp_path / "beside_trl.svg")
    loop_bench.draw([row_of(0, 20.0, 10.0), row_of(1, 30.0, 10.0, last=0.9)])
    assert (tmp_path / "beside_trl.svg").read_text().startswith("<?xml")
