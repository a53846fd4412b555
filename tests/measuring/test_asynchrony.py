"""The benchmark of asynchrony: its plan, the time to an accuracy, and the lines of its table."""

import dataclasses

import pytest

from tests.benchmarks.asynchrony import (
    BEGIN,
    END,
    LAYOUTS,
    PAGE,
    RESULTS,
    SEEDS,
    Cell,
    Row,
    documented,
    plan,
    table,
)
from tests.benchmarks.kept import read_kept

SLOW = Row(
    *("arithmetic", 1, 0, 0),
    seconds=[2.0 * i for i in range(1, 9)],
    correct=[0.2] * 3 + [0.8] * 5,
    tokens=[10] * 8,
    greedy=0.9,
    trainer_idle=0.6,
    rollout_idle=0.3,
    start_seconds=9.0,
    load=0.1,
)


def test_the_plan_has_each_layout_on_each_seed_and_turns_the_order_around():
    cells = plan()
    num_layouts = len(LAYOUTS["arithmetic"])
    assert len(cells) == len(set(cells)) == sum(map(len, LAYOUTS.values())) * len(SEEDS)
    first, second = cells[:num_layouts], cells[num_layouts : 2 * num_layouts]
    assert [cell.staleness for cell in first] == [cell.staleness for cell in second][::-1]
    assert {cell.seed for cell in first} == {0}


def test_an_accuracy_is_reached_when_the_mean_of_five_batches_is_there():
    # 3 x 0.2 + 2 x 0.8, then 2 x 0.2 + 3 x 0.8 of five: 0.44, then 0.56 with the sixth batch.
    assert SLOW.seconds_to(0.5) == 12.0
    assert SLOW.seconds_to(0.9) is None
    assert SLOW.tokens_per_second() == 80 / 16


def test_ratios_are_of_runs_of_one_seed():
    fast = [
        dataclasses.replace(SLOW, staleness=4, seed=seed, seconds=[float(i) for i in range(1, 9)])
        for seed in (0, 1)
    ]
    lines = table([SLOW, *fast]).splitlines()
    assert lines[2] == "| arithmetic | 1 | 0 | 1 | 5 |  | 12.0 |  | 60%, 30% | 90.0% |"
    assert lines[3].startswith("| arithmetic | 1 | 4 | 2 | 10 ± 0 | 2.00 | 6.0 ± 0.0 | 2.00 |")
    never = dataclasses.replace(SLOW, correct=[0.1] * 8)
    assert "| never |" in table([never])


@pytest.mark.parametrize("cell", [Cell("longtail", 2, 4, 4)])
def test_each_run_is_found_by_its_cell(cell: Cell):
    assert dataclasses.replace(SLOW, **dataclasses.asdict(cell)).cell == cell


def test_the_page_says_what_the_committed_runs_say():
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == documented(read_kept(Row, RESULTS))
