"""The stage of a recipe: keys that it sets, and keys that it refuses with the reason."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe.file import dump_recipe, load_recipe
from asyncrl.recipe.stage import OF_STAGES


@pytest.mark.parametrize("stage", OF_STAGES)
def test_a_stage_that_learns_rows_starts_no_server_and_is_read_back_as_it_is(
    tmp_path: Path, stage: str
) -> None:
    recipe = make_recipe(tmp_path, stage=stage, **{stage: {"rows_per_batch": 7}})
    assert recipe.learns_from_rows() and recipe.serving.fleet_size() == 0
    assert (recipe.rollout.groups_per_batch, recipe.rollout.samples_per_group) == (7, 1)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    read = load_recipe(tmp_path / "recipe.yaml")
    for name in ("stage", stage, "rollout", "algorithm", "replay", "serving", "evaluation"):
        assert getattr(read, name) == getattr(recipe, name), name


def test_servers_of_such_a_stage_answer_held_out_rows_where_a_verifier_grades_them(tmp_path: Path) -> None:
    evaluation = {"verifier": "math", "max_new_tokens": 20}
    recipe = make_recipe(tmp_path, stage="sft", evaluation=evaluation, serving={"num_servers": 2})
    assert recipe.serving.num_servers == 2
    with pytest.raises(InputError, match="evaluation.max_new_tokens is not set, but stage is sft"):
        make_recipe(tmp_path, stage="sft", evaluation={"verifier": "math"})


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        (
            {"rollout": {"temperature": 0.5}},
            "rollout.temperature is 0.5 but stage is sft, in which nothing is",
        ),
        (
            {"algorithm": {"kl": {"coefficient": 0.1}}},
            'algorithm.kl is {"coefficient": 0.1} but .* no reward',
        ),
        ({"algorithm": {"preset": "dapo"}}, "algorithm.preset is 'dapo' but stage is sft"),
        ({"verifying": {"default": "exact"}}, "verifying.default is 'exact' but .* no server is started"),
        ({"serving": {"num_servers": 2}}, "serving.num_servers is 2 but .* no server is started"),
        ({"placement": {"colocated": True}}, "placement.colocated is true but .* share nothing"),
        (
            {"trainer": {"splits_staleness": True}},
            "trainer.splits_staleness is true but stage is sft, in which no tok",
        ),
        ({"dpo": {"beta": 0.2}}, "dpo.beta is 0.2 but stage is sft. Remove it, or set stage to dpo"),
        ({"data": {"long_prompts": "leave_out"}}, "data.long_prompts is 'leave_out' but stage is sft"),
        ({"data": {"train": {"gym": "countdown"}}}, "names gym countdown but stage is sft"),
        (
            {"data": {"train": {"path": "a.jsonl", "columns": {"prompt": "q", "answer": "a"}}}},
            "data.train has columns without a response to learn, or with two",
        ),
        ({"stage": "rl", "sft": {"rows_per_batch": 8}}, "sft.rows_per_batch is 8 but stage is rl"),
        ({"stage": "rl", "serving": {"num_servers": 0}}, "serving.num_servers is 0 but stage is rl"),
        ({"stage": "dpo", "dpo": {"loss": "ipo", "label_smoothing": 0.1}}, "dpo.label_smoothing is 0.1 but"),
    ],
)
def test_keys_that_a_stage_has_no_use_for_are_refused_with_the_reason(
    tmp_path: Path, sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        make_recipe(tmp_path, **{"stage": "sft"} | sections)
