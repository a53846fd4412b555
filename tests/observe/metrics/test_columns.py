"""Every column has one name of its own outside of metrics.jsonl, and none is lost."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from asyncrl.observe.metrics import step_metrics
from asyncrl.observe.metrics.charts import CHARTS, FAMILIES, ROWS, evaluated_columns
from asyncrl.observe.metrics.columns import EVALUATIONS, groups, step_name, values_of

ALARMS = Path(__file__).parents[3] / "asyncrl" / "observe" / "alarms"


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
    columns = [column for group, found in groups().items() if group != EVALUATIONS for column in found]
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


def test_what_is_drawn_limited_or_looked_at_is_a_metric() -> None:
    known = {column for found in groups().values() for column in found}
    is_known = lambda column: any(re.fullmatch(name.replace("*", ".+"), column) for name in known)  # noqa: E731
    charts = (*CHARTS, *ROWS, *FAMILIES)
    drawn = {column for chart in charts for column, _, _ in chart.lines} | set(evaluated_columns())
    families = {chart.family for chart in charts if chart.family}
    alarms = "\n".join(path.read_text(encoding="utf-8") for path in ALARMS.glob("*.py"))
    looked_at = set(re.findall(r"history\.(?:now|before|rise|first|last|total)\(\"(\w+)\"", alarms))
    assert len(drawn) > 20 and "cut_share" in looked_at
    assert [column for column in drawn | looked_at if not is_known(column)] == []
    assert [begin for begin in families if not any(name.startswith(begin) for name in known)] == []
