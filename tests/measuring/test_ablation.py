"""The ablation: its plan, the rows that it resumes from and refuses, and what a row may say."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from asyncrl.algorithms.catalog import NOT_MEASURED, VERDICTS, catalog
from asyncrl.errors import InputError
from tests.benchmarks.algorithms.arms import ARMS, WEIGHTS
from tests.benchmarks.algorithms.cells import CellFailed, cell_recipe
from tests.benchmarks.algorithms.docs import BEGIN, END, PAGE, documented, write_docs
from tests.benchmarks.algorithms.noise import noised
from tests.benchmarks.algorithms.plan import (
    COMPARISONS,
    MOST_CELLS,
    MOST_COMPARISONS,
    NOISE,
    NOISE_LAG,
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
    primary_places,
    seeds_of,
    tuned_rate,
    tuning_cells,
)
from tests.benchmarks.algorithms.report import axis_table, figures_of, outcomes, verdicts
from tests.benchmarks.algorithms.results import append_row, read_rows
from tests.benchmarks.algorithms.run import COSTS, run_cells

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
    return [row_of(cell, 0.6 if cell.rate == best else 0.4) for arm in ARMS for cell in tuning_cells(arm)]


def test_each_place_is_a_recipe_that_loads():
    for place in places():
        recipe = cell_recipe(Cell(*place, seed=0, rate=1.0))
        assert recipe.rollout.max_staleness == place[2]
        assert recipe.trainer.num_steps == place[2] + NUM_UPDATES


def test_the_plan_is_small_and_has_ten_paired_seeds_where_something_is_tested():
    cells = make_plan([]).cells
    assert len(set(cells)) == len(cells) <= MOST_CELLS
    for place in places():
        seeds = [cell.seed for cell in cells if cell.place == place]
        assert tuple(seeds) == seeds_of(place)
        assert place not in primary_places() or len(seeds) == 10
    assert not set(SEEDS) & set(TUNING_SEEDS)


def test_each_arm_is_in_each_condition_and_weights_only_where_they_have_something_to_weigh():
    conditions = {("staleness", 0, 0.0), ("staleness", 4, 0.0), ("staleness", 16, 0.0)}
    conditions.add(("mismatch", NOISE_LAG, NOISE))
    for arm in ARMS:
        own = {(axis, lag, noise) for axis, name, lag, noise in places() if name == arm}
        assert conditions - own == ({("staleness", 0, 0.0)} if arm in WEIGHTS else set())


def test_the_plan_takes_what_has_all_seeds_first_and_tunes_an_arm_before_its_cells():
    cells = make_plan([]).cells
    sizes = [len(seeds_of(cell.place)) for cell in cells if cell.axis != "tuning"]
    assert sizes == sorted(sizes, reverse=True)
    primary = [cell.place in primary_places() for cell in cells if cell.axis != "tuning"]
    assert primary == sorted(primary, reverse=True)
    assert {cell.arm for cell in cells if cell.axis == "tuning"} == set(ARMS)
    for arm in ARMS:
        own = [cell.axis for cell in cells if cell.arm == arm]
        size = len(RATES) * len(TUNING_SEEDS)
        assert own[:size] == ["tuning"] * size
        assert "tuning" not in own[size:]


def test_ten_pairs_can_tell_in_each_primary_comparison():
    assert len(COMPARISONS) == len(set(COMPARISONS)) <= MOST_COMPARISONS
    assert MOST_COMPARISONS * 2 / 2 ** len(SEEDS) < 0.05


def test_the_term_of_an_arm_is_one_of_the_catalog():
    terms = {f"{entry.key}={entry.name}" for entry in catalog()}
    assert {arm.term for arm in ARMS.values() if arm.term} <= terms


def test_rows_survive_the_file(tmp_path: Path):
    row = row_of(CELL)
    append_row(tmp_path / "r", row)
    assert read_rows(tmp_path / "r") == [row]


def test_a_row_of_another_recipe_is_refused(tmp_path: Path):
    append_row(tmp_path / "r", dataclasses.replace(row_of(CELL), digest="0" * 16))
    with pytest.raises(InputError, match=r"r:1: staleness-truncated-lag16.*another recipe: digest 0000"):
        read_rows(tmp_path / "r")


def test_a_row_of_another_base_model_is_refused_before_it_is_written_and_when_it_is_read(tmp_path: Path):
    path = tmp_path / "r"
    append_row(path, row_of(CELL))
    other = dataclasses.replace(row_of(dataclasses.replace(CELL, seed=4)), greedy=(0.3, 0.5))
    with pytest.raises(
        InputError, match=r"^tuning-none.* began at a greedy accuracy of 0.3, other rows at 0.2"
    ):
        run_cells(
            path, [lambda cell: dataclasses.replace(row_of(cell), greedy=(0.3, 0.5))], hours=1, costs=COSTS
        )
    assert len(read_rows(path)) == 1
    append_row(path, other)
    with pytest.raises(InputError, match="r:2: staleness-truncated.* base model"):
        read_rows(path)


def test_a_digest_changes_with_what_the_run_is_told():
    others = [dataclasses.replace(CELL, **{name: 2}) for name in ("lag", "noise", "seed", "rate")]
    others += [dataclasses.replace(CELL, arm="masked"), dataclasses.replace(CELL, arm="kl")]
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
    assert {cell.rate for cell in tuning_cells("masked")} == set(RATES)


def test_the_cost_of_an_update_is_that_of_the_rows():
    costs = fit_costs([row_of(CELL)], Costs(40.0, 9.0))
    assert costs.per_update == pytest.approx(2.0)
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


def test_a_table_has_the_paired_difference_to_the_default_and_says_what_is_not_run():
    rows = [*tuning_rows(), *(row_of(dataclasses.replace(CELL, rate=2.0, seed=seed)) for seed in range(3))]
    rows += [row_of(dataclasses.replace(row.cell, arm="gspo"), 0.25) for row in rows[-3:-1]]
    table = axis_table("staleness", rows)
    assert "| `gspo` | 16 | 2 | 25.0 ± 0.0 | 25.0 25.0 | -25.0 ± 0.0 | 25.0 ± 0.0 | 2 |" in table
    assert "| `truncated` | 16 | 3 | 50.0 ± 0.0 | 50.0 50.0 50.0 |  | 50.0 ± 0.0 | 2 |" in table
    assert "Not run: 42 of 44 arms and lags." in table
    assert "Not run: 16 of 16" in axis_table("mismatch", rows)


def test_two_workers_run_each_cell_of_an_arm_once_at_its_tuned_rate_and_a_next_call_only_what_failed(
    tmp_path: Path,
):
    path, fails = tmp_path / "r", [CELL.seed]

    def run_cell(cell: Cell) -> Row:
        if cell.axis == "staleness" and cell.lag == 16 and cell.seed in fails:
            raise CellFailed("diverged")
        return row_of(cell, 0.6 if cell.rate == 2.0 else 0.4)

    begun: list[Cell] = []

    def noted(cell: Cell) -> Row:
        begun.append(cell)
        return run_cell(cell)

    assert run_cells(path, [noted, noted], hours=1.0, costs=COSTS, arms=["truncated"]) == 1
    assert len(begun) == len(set(begun)) == 6 + 10 + 10 + 10 + 10
    assert {cell.rate for cell in begun if cell.axis != "tuning"} == {2.0}
    fails.clear()
    begun.clear()
    assert run_cells(path, [noted], hours=1.0, costs=COSTS, arms=["truncated"]) == 0
    assert begun == [dataclasses.replace(CELL, rate=2.0)]


def test_cells_of_an_arm_whose_tuning_failed_are_not_begun(tmp_path: Path):
    def run_cell(cell: Cell) -> Row:
        if cell.rate == RATES[-1]:
            raise CellFailed("diverged")
        return row_of(cell)

    assert run_cells(tmp_path / "r", [run_cell] * 2, hours=1.0, costs=COSTS, arms=["kl"]) == 2
    assert {row.axis for row in read_rows(tmp_path / "r")} == {"tuning"}


def test_no_cell_begins_that_would_not_end_in_the_hours_of_the_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def run_cell(cell: Cell) -> Row:
        pytest.fail("a cell began")

    assert run_cells(tmp_path / "r", [run_cell], hours=0.001, costs=COSTS) == 0
    assert "531 cells are not begun: --hours 0.001 is over" in capsys.readouterr().out


def test_ctrl_c_begins_no_other_cell(tmp_path: Path):
    begun = []

    def run_cell(cell: Cell) -> Row:
        begun.append(cell)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(tmp_path / "r", [run_cell], hours=1.0, costs=COSTS)
    assert len(begun) == 1


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
