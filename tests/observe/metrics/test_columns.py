"""Columns of a step: each has a name, a group and an explanation, and comes with its feature alone."""

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from fakes.controllers import make_recipe

from asyncrl.observe.metrics.batch_columns import (
    batch_metrics,
    group_metrics,
    length_metrics,
    optional_columns,
)
from asyncrl.observe.metrics.charts import (
    CHARTS,
    EVALUATIONS,
    FAMILIES,
    ROWS,
    evaluated_columns,
    groups,
    step_name,
    values_of,
)
from asyncrl.observe.metrics.step_metrics import Reading, rollout_metrics, spike_metrics, trend_metrics
from asyncrl.observe.metrics.turn_metrics import source_metrics
from asyncrl.records import Batch, GradientSpike
from asyncrl.rollout.teacher import TeacherMetrics

ALARMS = Path(__file__).parents[3] / "asyncrl" / "observe" / "alarms"


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
        ("turns_mean", "turns/mean"),
        ("tool_use_share_by_source_a b", "turns/tool_use_share_by_source/a-b"),
        ("correct_mean_by_source_gsm8k-train", "reward/correct_mean_by_source/gsm8k-train"),
        ("pilots_stopped_share", "rollout/pilots_stopped_share"),
        ("pilots_stopped_share_by_source_a b", "rollout/pilots_stopped_share_by_source/a-b"),
        ("reflection_words_mean", "response/reflection_words_mean"),
        (
            "reflection_words_mean_by_word_wait a minute",
            "response/reflection_words_mean_by_word/wait-a-minute",
        ),
        ("of tomorrow", "other/of-tomorrow"),
    ],
)
def test_a_column_is_named_by_its_group(column: str, name: str) -> None:
    assert step_name(column) == name


def test_numbers_are_values_and_text_lists_and_null_are_none() -> None:
    row = {"kind": "step", "time_seconds": 1.0, "step": 3, "loss": 1, "entropy": None, "outcomes_said": "x"}
    assert values_of(row) == {"train/loss": 1.0}
    row = {
        "kind": "eval",
        "time_seconds": 1.0,
        "step": 3,
        "when": "after",
        "greedy_accuracy_by_source_a b": 0.5,
    }
    assert values_of(row) == {"eval/greedy_accuracy_by_source_a-b": 0.5}
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


SOURCES = [{"path": "a.jsonl", "weight": 1.0}, {"path": "b.jsonl", "weight": 1.0}]


@pytest.mark.parametrize(
    ("sections", "measured"),
    [
        ({}, set()),
        ({"turns": {"tools": ["calculator"]}}, {"turns_mean"}),
        ({"data": {"train": SOURCES}}, {"correct_mean_by_source"}),
        ({"agent": {"command": ["true"]}}, {"agent_calls_mean"}),
    ],
)
def test_only_a_run_with_the_feature_has_its_columns(sections: dict[str, Any], measured: set[str]) -> None:
    columns = {name for measure in optional_columns(make_recipe(**sections)) for name in measure([])}
    every = {"turns_mean", "correct_mean_by_source", "agent_calls_mean"}
    assert columns & every == measured


SOURCE = Path(__file__).parents[3] / "asyncrl"


def test_the_catalog_explains_each_column_of_a_step_and_no_other() -> None:
    explained = {column for group, found in groups().items() if group != EVALUATIONS for column in found}
    made = columns_of_a_step()
    assert made - explained == set()
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    # Names are put together of a kind of model or of time, and the rest.
    composed = re.compile(r"^(judge|heldout)_|(_total|_at_start|_\*)$")
    unknown = {column for column in explained - made if column not in words}
    assert {composed.sub("", column) for column in unknown} <= words


def columns_of_a_step() -> set[str]:
    """Columns of the controller, the trainer and the critic; families by outcome or verifier with a star."""
    # Not above: every process of a run of tests imports this file, and Megatron takes seconds.
    import torch

    from asyncrl.trainer.parts.critic import SUMS, value_metrics
    from asyncrl.trainer.step import token_sums
    from asyncrl.trainer.step.diagnostics import MAXIMA, NUM_SUMS, step_diagnostics

    known = set(step_diagnostics(torch.zeros(NUM_SUMS), torch.zeros(len(MAXIMA))))
    known |= token_sums.split_metrics(
        torch.ones(token_sums.NUM_SPLIT_SUMS), dict.fromkeys(token_sums.SPLIT_MAXIMA, 1.0)
    ).keys()
    known |= token_sums.teacher_metrics(torch.ones(token_sums.NUM_TEACHER_SUMS)).keys()
    known |= get_type_hints(TeacherMetrics).keys()
    known |= value_metrics(torch.zeros(len(SUMS))).keys()
    known |= {"critic_grad_norm", "critic_learning_rate", "critic_skipped_steps", "critic_loss_scale"}
    now = Reading(0.0, 0, 0, 0.0, 1, 0.0, 0.0, 0.0, 0.0, 0)
    own = (
        rollout_metrics(now, now),
        trend_metrics([], []),
        spike_metrics(GradientSpike("norm.weight", 0, 0.9, 1.0, 2.0), str),
        batch_metrics(Batch(0, 1.0, [])),
        group_metrics([], lambda group: True),
        length_metrics([]),
        source_metrics([], has_turns=True),
    )
    # A dictionary becomes a column per key.
    known |= {f"{name}_*" if isinstance(value, dict) else name for row in own for name, value in row.items()}
    named = "pilots_stopped_share_by_source_*", "reflection_words_mean_by_outcome_*"
    return known | {*named, "reflection_words_mean_by_word_*"}
