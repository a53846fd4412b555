"""The ablation: its plan, the rows that it resumes from and refuses, and what a row may say."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from asyncrl.algorithms.catalog import NOT_MEASURED, VERDICTS, catalog
from asyncrl.errors import InputError
from tests.benchmarks.algorithms import run
from tests.benchmarks.algorithms.arms import ARMS, MAIN
from tests.benchmarks.algorithms.cells import CellFailed, cell_recipe
from tests.benchmarks.algorithms.docs import BEGIN, END, PAGE, documented, write_docs
from tests.benchmarks.algorithms.noise import noised
from tests.benchmarks.algorithms.plan import (
    COMPARISONS,
    MOST_COMPARISONS,
    NUM_UPDATES,
    RATES,
    SEEDS,
    TUNING_SEEDS,
    Cell,
    Costs,
    Row,
    fit_costs,
    make_plan,
    places,
    tuned_rate,
    tuning_cells,
)
from tests.benchmarks.algorithms.report import axis_table, figures_of, markdown, outcomes, verdicts
from tests.benchmarks.algorithms.results import append_row, read_rows
from tests.benchmarks.algorithms.run import check_tuned, parse_arguments, wanted_cells

CELL = Cell("staleness", "truncated", 16, 0.0, 3, 1.0)


def row_of(cell: Cell, height: float = 0.5) -> Row:
    """A row whose curve is flat."""
    curve = [(version, height) for version in (0, cell.lag, cell.num_updates)]
    return Row(
        **dataclasses.asdict(cell),
        digest=cell.digest(),
        heldout=sorted(dict(curve).items()),
        greedy=(0.2, height),
        rewards=[0.5] * cell.num_updates,
        mismatch_kl=None,
        cpu_seconds=40.0 + 2.0 * cell.num_updates,
        wall_seconds=100.0,
        version="test",
    )


def tuning_rows(best: float = 2.0) -> list[Row]:
    return [row_of(cell, 0.6 if cell.rate == best else 0.4) for cell in tuning_cells()]


def test_each_arm_of_an_axis_is_a_recipe_that_loads_at_its_first_and_last_lag():
    ordered = sorted(places(), key=lambda place: place[2:])
    ends = {place[:2]: place for place in ordered} | {(place[:2], 0): place for place in reversed(ordered)}
    for place in dict.fromkeys(ends.values()):
        cell = Cell(*place, seed=0, rate=1.0)
        recipe = cell_recipe(cell)
        assert recipe.rollout.max_staleness == cell.lag
        assert recipe.trainer.num_steps == cell.lag + NUM_UPDATES


def test_the_plan_has_ten_paired_seeds_per_place_and_no_cell_twice():
    cells = [cell for cell in make_plan([]).cells if cell.axis != "tuning"]
    assert len(set(cells)) == len(cells) == len(SEEDS) * len(set(places()))
    for place in places():
        assert {cell.seed for cell in cells if cell.place == place} == set(SEEDS)
    assert not set(SEEDS) & set(TUNING_SEEDS)


def test_the_axis_of_staleness_has_each_arm_up_to_16_and_the_main_ones_beyond():
    lags = {
        arm: {lag for axis, name, lag, _ in places() if (axis, name) == ("staleness", arm)} for arm in ARMS
    }
    assert all(lags[arm] == {0, 1, 4, 16, 64, 128} for arm in MAIN)
    assert all(lags[arm] | {0} == {0, 1, 4, 16} for arm in ARMS if arm not in MAIN)
    assert [arm for arm in ARMS if 0 not in lags[arm]] == ["a3po"]


def test_what_is_compared_is_in_the_plan_and_ten_pairs_can_tell():
    assert len(COMPARISONS) == len(set(COMPARISONS)) <= MOST_COMPARISONS
    for c in COMPARISONS:
        assert {(c.axis, name, c.lag, c.noise) for name in (c.arm, c.reference)} <= set(places())
    assert MOST_COMPARISONS * 2 / 2 ** len(SEEDS) < 0.05


def test_the_term_of_an_arm_is_one_of_the_catalog():
    terms = {f"{entry.key}={entry.name}" for entry in catalog()}
    assert {arm.term for arm in ARMS.values() if arm.term} <= terms


def test_a_plan_resumes_with_the_cells_that_the_results_lack(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    append_row(path, row_of(CELL))
    arguments = parse_arguments(["--axis", "staleness", "--arms", "truncated", "--lags", "16"])
    left = wanted_cells(arguments, read_rows(path))
    assert [cell.seed for cell in left] == [seed for seed in SEEDS if seed != CELL.seed]
    for cell in left:
        append_row(path, row_of(cell))
    assert wanted_cells(arguments, read_rows(path)) == []


def test_rows_survive_the_file(tmp_path: Path):
    row = row_of(CELL)
    append_row(tmp_path / "r", row)
    assert read_rows(tmp_path / "r") == [row]


def test_a_row_of_another_recipe_is_refused(tmp_path: Path):
    append_row(tmp_path / "r", dataclasses.replace(row_of(CELL), digest="0" * 16))
    with pytest.raises(InputError, match=r"r:1: staleness-truncated-lag16.*another recipe: digest 0000"):
        read_rows(tmp_path / "r")


def test_a_digest_changes_with_what_the_run_is_told():
    others = [dataclasses.replace(CELL, **{name: 2}) for name in ("lag", "noise", "seed", "rate")]
    others += [dataclasses.replace(CELL, arm="masked"), dataclasses.replace(CELL, axis="tail")]
    assert len({cell.digest() for cell in (CELL, *others)}) == 7


def test_a_cell_twice_and_a_torn_line_are_refused(tmp_path: Path):
    for _ in range(2):
        append_row(tmp_path / "twice", row_of(CELL))
    with pytest.raises(InputError, match="twice:2: .* a second time"):
        read_rows(tmp_path / "twice")
    (tmp_path / "torn").write_text(row_of(CELL).line()[:40])
    with pytest.raises(InputError, match="torn:1 is no row"):
        read_rows(tmp_path / "torn")


def test_a_rate_is_chosen_once_all_of_an_arms_tuning_is_there():
    rows = tuning_rows(best=2.0)
    assert tuned_rate("masked", rows) == 2.0
    first = next(row for row in rows if row.arm == "masked")
    assert tuned_rate("masked", [row for row in rows if row is not first]) is None
    assert {cell.rate for cell in make_plan(rows).cells if cell.axis == "staleness"} == {2.0}
    assert {cell.rate for cell in tuning_cells()} == set(RATES)


def test_cells_wait_for_the_tuning_of_their_arm():
    with pytest.raises(InputError, match="truncated is not tuned yet. Run --axis tuning"):
        check_tuned([CELL], [])
    check_tuned([CELL], tuning_rows())
    check_tuned(tuning_cells(), [])


def test_the_cost_of_an_update_is_that_of_the_rows():
    before = Costs(40.0, {"reasoning": 9.0, "tail": 7.0})
    costs = fit_costs([row_of(CELL)], before)
    assert costs.per_update == {"reasoning": pytest.approx(2.0), "tail": 7.0}
    assert costs.of(CELL) == pytest.approx(40 + 64 * 2)


def test_an_arm_that_is_ahead_on_each_seed_has_a_verdict_and_one_without_rows_has_none():
    rows = tuning_rows()
    for seed in SEEDS:
        for arm, height in (("none", 0.5), ("truncated", 0.6 + seed / 1000)):
            rows.append(row_of(Cell("staleness", arm, 16, 0.0, seed, 2.0), height))
    first, second = outcomes(rows)[:2]
    assert (first.comparison.arm, first.p) == ("truncated", 2 / 1024)
    # The family is all comparisons, also those that are not run.
    assert first.corrected_p == pytest.approx(len(COMPARISONS) * 2 / 1024)
    assert first.verdict().startswith("above `none` at lag 16: +10.4 ± 0.2 points (10 pairs")
    assert (second.p, second.verdict()) == (1.0, NOT_MEASURED)
    assert set(verdicts(rows)) == {"algorithm.importance_weight=truncated"}


def test_seeds_that_are_missing_and_rates_that_are_not_tuned_give_no_verdict():
    cells = [Cell("staleness", arm, 16, 0.0, seed, 1.0) for arm in ("none", "truncated") for seed in SEEDS]
    rows = [row_of(cell, 0.5 + 0.1 * (cell.arm == "truncated")) for cell in cells]
    assert verdicts(rows) == {}
    assert verdicts(tuning_rows(best=1.0) + rows[1:]) == {}
    assert len(verdicts(tuning_rows(best=1.0) + rows)) == 1


def test_what_is_not_run_is_said_to_be_so():
    table = axis_table("staleness", [row_of(CELL, 0.25)])
    assert "| `truncated` | 16 | 0 | 1 of 10 | 25.0 | 25.0 | 25.0 | 1 x recipe's, not tuned |" in table
    assert "| `none` | 16 | 0 | 0 of 10 | not run | | | |" in table
    assert "**Length tail**: not run." in markdown([])


def test_cells_run_once_each_and_a_failed_one_is_counted_and_left_for_the_next_call(tmp_path: Path):
    cells = [dataclasses.replace(CELL, seed=seed) for seed in range(4)]

    def run_cell(cell: Cell) -> Row:
        if cell.seed == 2:
            raise CellFailed("diverged")
        return row_of(cell)

    path = tmp_path / "r"
    assert run.run_cells(cells, path, [run_cell, run_cell], hours=1.0, costs=run.COSTS) == 1
    assert sorted(row.seed for row in read_rows(path)) == [0, 1, 3]


def test_no_cell_begins_that_would_not_end_in_the_hours_of_the_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def run_cell(cell: Cell) -> Row:
        pytest.fail("a cell began")

    assert run.run_cells([CELL], tmp_path / "r", [run_cell], hours=0.001, costs=run.COSTS) == 0
    assert "1 cells are not begun: --hours 0.001 is over." in capsys.readouterr().out


def test_ctrl_c_begins_no_other_cell(tmp_path: Path):
    begun = []

    def run_cell(cell: Cell) -> Row:
        begun.append(cell)
        raise KeyboardInterrupt

    cells = [dataclasses.replace(CELL, seed=seed) for seed in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run.run_cells(cells, tmp_path / "r", [run_cell], hours=1.0, costs=run.COSTS)
    assert begun == cells[:1]


def test_docs_and_catalog_say_what_the_committed_results_say():
    rows = read_rows()
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == documented(rows, figures_of(rows))
    assert json.loads(VERDICTS.read_text(encoding="utf-8")) == verdicts(rows)
    assert all(path.exists() for path in figures_of(rows))


def test_the_page_is_only_changed_between_its_marks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old{END}\nafter\n")
    write_docs([], [], page)
    assert page.read_text() == f"before\n{BEGIN}{documented([], [])}{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(InputError, match="lacks"):
        write_docs([], [], page)


def test_noise_has_its_size_and_is_fresh_in_each_version():
    weight = torch.linspace(-2, 2, 20_000).reshape(100, 200)
    found = {version: dict(noised([("w", weight)], version, 0.03))["w"] for version in (1, 2)}
    again = dict(noised([("w", weight)], 1, 0.03))["w"]
    noise = found[1] - weight
    assert noise.norm() / weight.norm() == pytest.approx(0.03, rel=0.03)
    assert torch.equal(found[1], again)
    assert abs(torch.corrcoef(torch.stack([noise.flatten(), (found[2] - weight).flatten()]))[0, 1]) < 0.05
