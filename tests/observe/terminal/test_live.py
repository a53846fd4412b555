"""The line per step: widths, headers, colours only on a terminal."""

import io
from typing import Any, Literal

import pytest
from rich.console import Console

from asyncrl.observe.terminal.live import HEADER_EVERY_LINES, LiveLine


def shown(
    *rows: dict[str, Any],
    width: int = 80,
    total: int = 50,
    evaluation: dict[str, Any] | None = None,
    is_terminal: bool = False,
) -> list[str]:
    """Lines of these steps, after the evaluation if there is one."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    colors: Literal["standard"] | None = "standard" if is_terminal else None
    screen = Console(file=file, width=width, force_terminal=is_terminal, color_system=colors)
    live = LiveLine(total, console=screen)
    if evaluation is not None:
        live.evaluation(evaluation)
    for each in rows:
        (live.dropped if "num_dropped" in each else live.step)(each)
    file.seek(0)
    return file.read().splitlines()


def row(step: int, **fields: Any) -> dict[str, Any]:
    return {
        "step": step,
        "reward_mean": 0.62,
        "correct_mean": 0.5,
        "response_tokens_mean": 31.2,
        "cut_share": 0.08,
        "staleness_mean": 1.24,
        "staleness_max": 2,
        "rollout_tokens_per_second": 4231.0,
        "tokens_per_second": 11_400.0,
        "mismatch_kl": 8.2e-5,
        "capped_share": 0.003,
        "trainer_idle_share": 0.12,
        "rollout_idle_share": 0.03,
        "step_seconds": 0.5,
        **fields,
    }


EVALUATION = {
    "step": 10,
    "when": "during",
    "greedy_accuracy": 0.912,
    "greedy_low": 0.874,
    "greedy_high": 0.941,
}


def test_a_line_at_eighty_columns_holds_the_needed_numbers() -> None:
    title, units, line = shown(row(12), evaluation=EVALUATION)
    # 38 steps left at 0.5 s each: 19 s.
    expected = "12/50 0.62 ██ 91% 87-94 31.2 8 1.2/2 4.2k 11k 8e-05 12/3 0.50 19 s"
    assert line.split() == expected.split()
    assert max(map(len, (title, units, line))) <= 80


def test_the_share_of_tokens_that_the_loss_leaves_out_is_shown_and_coloured_above_its_limit() -> None:
    rows = [row(9, left_out_share=share) for share in (0.031, 0.62)]
    title, _, first, second = shown(*rows, width=100, is_terminal=True)
    assert "mask" in title and "3.1" in first and "\x1b[33m  62" in second and "\x1b[33m 3.1" not in first


def test_columns_stay_aligned_under_their_titles() -> None:
    other = row(10, rollout_tokens_per_second=None, step_seconds=12.0, mismatch_kl=0.013)
    title, _, first, second = shown(row(9), other, width=100)
    end = title.index("roll") + len("roll")
    assert first[:end].endswith("4.2k")
    assert second[:end].endswith("    -")
    assert len(first) == len(second)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("total", [50, 1000, 100_000])
def test_no_line_is_wider_than_the_terminal(width: int, total: int) -> None:
    best = {**EVALUATION, "greedy_accuracy": 1.0, "greedy_high": 1.0}
    assert max(map(len, shown(row(total), width=width, total=total, evaluation=best))) <= width


def test_the_interval_is_shown_only_on_the_first_line_after_an_evaluation() -> None:
    first, second = shown(row(11), row(12), evaluation=EVALUATION)[2:]
    assert "91% 87-94" in first
    assert "91%" in second and "87-94" not in second


def test_the_evaluations_before_and_after_have_their_own_line() -> None:
    samples = {"k": 4, "avg_at_k": 0.5, "avg_low": 0.45, "avg_high": 0.55}
    samples |= {"pass_at_k": 0.8, "pass_low": 0.7, "pass_high": 0.9}
    assert shown(evaluation={**EVALUATION, "when": "before", **samples}) == [
        "held-out before training: greedy 91% 87-94, avg@4 50% 45-55, pass@4 80% 70-90"
    ]


def test_the_header_returns_after_a_screenful() -> None:
    lines = shown(*(row(step) for step in range(HEADER_EVERY_LINES + 1)))
    assert [line.split()[0] for line in lines].count("step") == 2


def test_a_step_that_measured_nothing_prints_dashes() -> None:
    assert set(shown({"step": 1})[2].split()[1:]) == {"-"}


def test_groups_dropped_while_a_step_waits_are_counted_by_reason() -> None:
    counts = {"no_signal": 4_060, "all_wrong": 4_000, "all_right": 60, "fault": 4, "server": 0, "stale": 0}
    assert shown({"step": 5, "num_dropped": 4_064, **counts}, width=200) == [
        "step 5 waits for its batch: 4,064 groups dropped since the last, 4 by faults, "
        "4,060 without a signal (4,000 all wrong, 60 all right)"
    ]


def test_a_run_with_tools_shows_the_share_of_trajectories_that_called_one_where_there_is_room() -> None:
    lines = shown(row(1, tool_use_share=0.375), row(2, tool_use_share=None))
    title, _, first, second = lines
    end = title.index("tool") + 4
    assert first[:end].split()[-1] == "38" and second[:end].split()[-1] == "-"
    assert "cut" in title and all(len(line) <= 80 for line in lines)
    assert "tool" not in shown(row(1, tool_use_share=0.375), width=60)[0]


def test_a_teacher_brings_a_column_and_without_rewards_theirs_goes() -> None:
    taught = row(1, teacher_kl=0.34567)
    assert {"teach", "reward", "trend"} <= set(shown(taught, width=160)[0].split())
    del taught["reward_mean"]
    for width in (80, 160):
        titles, _, cells = shown(taught, width=width)
        assert "teach" in titles and "reward" not in titles and "0.346" in cells
