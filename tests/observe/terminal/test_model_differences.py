"""Two models side by side in the terminal: differences in a table, curves over k in a plot."""

from typing import Any

from rich.console import Console

from asyncrl.observe.metrics.sample_curves import Tally, compare
from asyncrl.observe.terminal.model_differences import (
    comparison_header,
    comparison_rows,
    comparison_table,
    comparison_title,
    curve_plot,
    curve_tables,
    differences,
)
from asyncrl.observe.terminal.table import NOTHING, print_table

BASE: dict[str, Any] = {
    "benchmark": "gsm8k",
    "template": "boxed, as chat",
    "num_tasks": 4,
    "num_left_out": 0,
    "temperature": 0.0,
    "max_new_tokens": 1024,
    "greedy_accuracy": 0.25,
    "greedy_low": 0.05,
    "greedy_high": 0.7,
    "greedy_scores": [1.0, 0.0, 0.0, 0.0],
    "response_tokens_mean": 200.0,
    "cut_share": 0.5,
    "num_faults": 0,
}
TRAINED = {**BASE, "greedy_accuracy": 0.75, "greedy_low": 0.3, "greedy_high": 0.95, "cut_share": 0.25}
TRAINED |= {"greedy_scores": [1.0, 1.0, 1.0, 0.0], "response_tokens_mean": 150.0}


def test_two_models_stand_side_by_side_with_their_paired_difference() -> None:
    # Differences 0, 1, 1, 0: mean 0.5; centre 2 / 6, half 1.96 x sqrt((3 / 6 - 1 / 9) / 6) = 0.499
    assert comparison_header(("base", "step 4")) == ["", "base", "step 4", "difference"]
    assert comparison_rows([BASE, TRAINED]) == [
        ["greedy accuracy", "25.0% [5.0, 70.0]", "75.0% [30.0, 95.0]", "+50.0 [-16.6, +83.2]"],
        ["response tokens", "200", "150", ""],
        ["cut at the limit", "50.0%", "25.0%", ""],
    ]


def test_samples_and_faults_have_rows_where_there_are_any() -> None:
    sampled = {name: value for name, value in BASE.items() if not name.startswith("greedy")}
    sampled |= {"k": 4, "temperature": 0.8, "avg_at_k": 0.5, "avg_low": 0.25, "avg_high": 0.75}
    sampled |= {"pass_at_k": 1.0, "pass_low": 0.5, "pass_high": 1.0, "num_faults": 3, "num_left_out": 2}
    rows = comparison_rows([sampled])
    assert [row[0] for row in rows] == [
        "avg@4",
        "pass@4",
        "response tokens",
        "cut at the limit",
        "faults, not counted",
    ]
    assert rows[-1] == ["faults, not counted", "3"]
    assert comparison_title(sampled) == (
        "gsm8k: 4 tasks (2 rows left out), template boxed, as chat, 4 samples at temperature 0.8, "
        "at most 1,024 tokens"
    )
    cut = {**sampled, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    assert comparison_title(cut).endswith(
        "4 samples at temperature 0.8, top-p 0.95, top-k 20, min-p 0.05, repetition penalty 1.1, "
        "at most 1,024 tokens"
    )


def test_the_use_of_tools_and_each_source_have_rows_where_they_were_measured() -> None:
    use = {"tool_use_share": 0.5, "tool_use_low": 0.25, "tool_use_high": 0.75}
    use |= {f"sampled_{name}": value / 2 for name, value in use.items()}
    long = {f"{name}_by_source_a_b": BASE[name] for name in ("greedy_accuracy", "greedy_low", "greedy_high")}
    long |= {"avg_at_k_by_source_a_b": 0.5, "avg_low_by_source_a_b": 0.25, "avg_high_by_source_a_b": 0.75}
    short = {f"{name}_by_source_short": value for name, value in use.items()}
    rows = comparison_rows([{**BASE, **use, **long, **short}, {**TRAINED, "k": 4}])
    assert rows[1:-2] == [
        ["tool use", "50.0% [25.0, 75.0]", "-", ""],
        ["tool use of samples", "25.0% [12.5, 37.5]", "-", ""],
        ["a_b: greedy accuracy", "25.0% [5.0, 70.0]", "-", ""],
        ["a_b: avg@4", "50.0% [25.0, 75.0]", "-", ""],
        ["short: tool use", "50.0% [25.0, 75.0]", "-", ""],
        ["short: tool use of samples", "25.0% [12.5, 37.5]", "-", ""],
    ]


def test_a_share_of_nothing_is_shown_and_no_faults_are_not() -> None:
    rows = comparison_rows([{**BASE, "cut_share": 0.0}, TRAINED])
    assert rows[-1] == ["cut at the limit", "0.0%", "25.0%", ""]


def test_a_task_without_a_verdict_of_both_is_no_part_of_the_difference() -> None:
    faulty = {**TRAINED, "greedy_scores": [None, 1.0, 1.0, 0.0]}
    found = differences(BASE, faulty)["greedy"]
    assert (found.num_tasks, round(found.mean, 3)) == (3, 0.667)


def test_a_model_without_a_result_leaves_its_cells_open() -> None:
    assert comparison_rows([None, TRAINED])[0] == ["greedy accuracy", "-", "75.0% [30.0, 95.0]", "-"]
    assert comparison_rows([BASE, None])[0] == ["greedy accuracy", "25.0% [5.0, 70.0]", "-", "-"]
    console = Console(record=True, width=160, highlight=False)
    print_table(comparison_table(("base", "step [4]"), [BASE, None]), console)
    text = console.export_text()
    assert (
        "gsm8k: 4 tasks, template boxed, as chat, greedy, at most 1,024 tokens" in text and "step [4]" in text
    )


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
