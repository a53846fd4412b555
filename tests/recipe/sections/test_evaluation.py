"""The section `evaluation`: settings of its own in place of the rollouts', and what cannot work."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError


def test_what_an_evaluation_does_not_set_is_as_in_rollouts(tmp_path: Path) -> None:
    rollout = {"max_new_tokens": 100, "stop": ["Q:"], "stop_tokens": ["<e>"], "include_stop": False}
    recipe = make_recipe(tmp_path, rollout=rollout)
    assert recipe.evaluation.rollout_of(recipe.rollout) == recipe.rollout
    recipe = make_recipe(tmp_path, rollout=rollout, evaluation={"max_new_tokens": 300, "stop": []})
    asked = recipe.evaluation.rollout_of(recipe.rollout)
    assert (asked.max_new_tokens, asked.stop, asked.stop_tokens, asked.include_stop) == (
        *(300, [], ["<e>"]),
        False,
    )
    assert recipe.longest_response() == 100


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"model": {"context_tokens": 200}, "evaluation": {"max_new_tokens": 200}},
            r"evaluation.max_new_tokens is 200 but the context holds 200 tokens: no room .*Lower evaluation",
        ),
        ({"evaluation": {"verifier_options": {"a": 1}}}, "verifier_options is set but evaluation.verifier"),
        (
            {"evaluation": {"verifier": "exact"}, "turns": {"environment": "game"}},
            "the verdict from there is the one that counts. Remove evaluation.verifier, or turns.environment",
        ),
        (
            {
                "evaluation": {"verifier": "exact"},
                "agent": {"command": ["true"], "may_give_verdict": True},
            },
            "Remove evaluation.verifier, or agent.may_give_verdict",
        ),
        ({"evaluation": {"stop": [""]}}, "evaluation.stop.0 is '': string should have at least 1 character"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(
    tmp_path: Path, sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        make_recipe(tmp_path, **sections)
