"""A run's inputs: the sizes that they tell."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.records import make_task

from asyncrl.controller.inputs import Inputs


@pytest.mark.parametrize(
    ("turns", "context_tokens", "expected"),
    [
        ({}, 10_000, 3 + 100),
        ({"environment": "game", "max_turns": 4, "max_observed_tokens": 50}, 10_000, 3 + 100 + 3 * 50),
        ({"tools": ["calculator"], "max_turns": 4, "max_observed_tokens": 50}, 10_000, 3 + 100 + 3 * 50),
        ({"environment": "game", "max_turns": 4, "max_observed_tokens": 50}, 200, 200),
    ],
)
def test_the_longest_trajectory_holds_what_is_observed(
    tmp_path: Path, turns: dict[str, Any], context_tokens: int, expected: int
) -> None:
    recipe = make_recipe(tmp_path, rollout={"max_new_tokens": 100}, turns=turns)
    parts: Any = None
    inputs = Inputs(recipe, [make_task()], [], parts, parts, context_tokens)
    assert inputs.longest_trajectory() == expected
