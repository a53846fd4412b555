"""Curves over k on a terminal."""

from asyncrl.observe.metrics.formats import NOTHING
from asyncrl.observe.metrics.sample_curves import Tally, compare
from asyncrl.observe.terminal.model_differences import curve_plot, curve_tables

RARE, SURE, NEVER = Tally(4, 1, ((3, 0), (1, 1))), Tally(4, 4, ((4, 4),)), Tally(4, 0, ((4, 0),))


def test_a_table_has_a_row_for_powers_of_two_and_the_largest_k() -> None:
    passed, majority = curve_tables("sums", compare(["base", "step 8"], [[RARE, RARE], [SURE, NEVER]]))
    assert passed.title == "sums, pass@k: one of k samples is correct"
    assert passed.header == ["k", "base", "step 8", "difference"]
    assert [row[0] for row in passed.rows] == ["1", "2", "4"]
    assert passed.rows[0][1].startswith("25.0% [") and passed.rows[2][1].startswith("100.0% [")
    assert [row[3].split()[0] for row in passed.rows] == ["+25.0", "+0.0", "-50.0"]
    assert majority.title.startswith("sums, maj@k")


def test_a_model_with_fewer_samples_has_no_cell_for_larger_k() -> None:
    (passed, _) = curve_tables("sums", compare(["base", "step 8"], [[RARE], [Tally(2, 2, ((2, 2),))]]))
    assert passed.rows[-1][1] != NOTHING and passed.rows[-1][2:] == [NOTHING, NOTHING]


def test_a_plot_has_a_mark_for_each_model_where_its_curve_is() -> None:
    lines = curve_plot(compare(["base", "step 8"], [[RARE, RARE], [SURE, NEVER]]))
    assert lines[0] == "pass@k over k: o base, • step 8"
    # From 100% to 20% in ten lines: base begins at 25% and ends at 100%; step 8 stays at one half.
    assert (lines[10][7], lines[1].rstrip()[-1]) == ("o", "o")
    (level,) = [line for line in lines[1:12] if "•" in line]
    assert level.count("•") > 40
    assert lines[-1].split() == ["1", "2", "4"]


def test_one_sample_has_no_plot_and_curves_that_never_move_have_one() -> None:
    assert curve_plot(compare(["base"], [[Tally(1, 1, ((1, 1),))]])) == []
    assert curve_plot(compare(["base"], [[SURE]]))[1].count("o") == 56
    assert "o" * 56 in curve_plot(compare(["base"], [[NEVER]]))[-3]


def test_tasks_that_faults_left_out_are_told() -> None:
    (passed, _) = curve_tables("sums", compare(["base"], [[RARE, Tally(2, 0, ((2, 0),))]]))
    assert passed.note == "Faults leave 1 of 2 tasks with 4 verdicts."
