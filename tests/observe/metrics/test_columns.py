"""Every column has one name of its own outside of metrics.jsonl, and none is lost."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from asyncrl.controller import step_metrics
from asyncrl.observe.metrics.columns import GROUPS, step_name, values_of


def test_columns_of_the_controller_have_a_group() -> None:
    sections = (
        step_metrics.Speed,
        step_metrics.Trained,
        step_metrics.Staleness,
        step_metrics.Verdicts,
        step_metrics.Trends,
    )
    columns = [column for section in sections for column in get_type_hints(section)]
    # A dictionary becomes a column per key.
    ends = ("outcomes", "by_verifier", "by_outcome", "by_part", "decode", "prefill")
    columns = [f"{column}_x" if column.endswith(ends) else column for column in columns]
    assert [column for column in columns if step_name(column).startswith("other/")] == []


def test_no_two_columns_share_a_name() -> None:
    columns = [column for group in GROUPS.values() for column in group]
    names = [step_name(column) for column in columns]
    assert len(set(columns)) == len(columns) and len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("loss", "train/loss"),
        ("rollout_tokens_per_second", "rollout/tokens_per_second"),
        ("tokens_per_second", "train/tokens_per_second"),
        ("mismatch_kl_quarter_1", "mismatch/kl_quarter_1"),
        ("outcomes_no_answer", "verifier/outcomes/no_answer"),
        (
            "outcomes_by_verifier_./sevens.py:Sevens_no_answer",
            "verifier/outcomes_by_verifier/sevens.py-Sevens/no_answer",
        ),
        ("reward_mean_by_outcome_wrong", "reward/mean_by_outcome/wrong"),
        ("critic_grad_norm", "critic/grad_norm"),
        ("of tomorrow", "other/of-tomorrow"),
    ],
)
def test_a_column_is_named_by_its_group(column: str, name: str) -> None:
    assert step_name(column) == name


def test_numbers_are_values_and_text_lists_and_null_are_none() -> None:
    row = {"kind": "step", "time_seconds": 1.0, "step": 3, "loss": 1, "entropy": None, "outcomes_said": "x"}
    assert values_of(row) == {"train/loss": 1.0}
    row = {"kind": "eval", "time_seconds": 1.0, "step": 3, "when": "after", "greedy_accuracy": 0.5}
    assert values_of(row) == {"eval/greedy_accuracy": 0.5}
    row = {
        "kind": "benchmark",
        "time_seconds": 1.0,
        "step": 3,
        "benchmark": "my tasks.jsonl",
        "avg_scores": [1],
    }
    assert values_of(row | {"avg_at_k": 0.5}) == {"benchmark/my-tasks.jsonl/avg_at_k": 0.5}


def test_the_page_has_each_column_under_its_group() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## [^\n]*: `(\w+)/`\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert {group for group, _ in sections} == set(GROUPS)
    for group, section in sections:
        rows = re.findall(r"^\| (`.+?`) \| .+ \|$", section, re.MULTILINE)
        columns = [column for row in rows for column in re.findall(r"`(.+?)`", row)]
        assert set(GROUPS[group]) <= set(columns)
        # Text has no name in a tracker.
        assert {step_name(column).partition("/")[0] for column in columns if column != "spike_row"} == {group}
