"""Which columns of a batch a run has, by its recipe."""

from typing import Any

import pytest
from fakes.controllers import make_recipe

from asyncrl.observe.metrics.batch_columns import optional_columns

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
