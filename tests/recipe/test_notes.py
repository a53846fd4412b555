"""What `check` says of recipes that are valid and do less, or more, than they seem to."""

from pathlib import Path

import pytest
from fakes.recipes import make_recipe

from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.notes import notes

RECIPES = Path(__file__).parents[2] / "recipes"
TWO_STEPS = {"optimizer_steps_per_batch": 2}


@pytest.mark.parametrize("surrogate", ["ppo_clip", "gspo", "cispo", "gmpo"])
def test_a_clip_that_cannot_bind_is_said(surrogate: str) -> None:
    (note,) = notes(make_recipe(Path("m"), algorithm={"surrogate": surrogate}))
    assert "every policy ratio is 1" in note and "trainer.optimizer_steps_per_batch" in note
    assert notes(make_recipe(Path("m"), algorithm={"surrogate": surrogate}, trainer=TWO_STEPS)) == []
    around = {"surrogate": surrogate, "clip_around": "behavior", "importance_weight": "none"}
    assert notes(make_recipe(Path("m"), algorithm=around)) == []


def test_nothing_is_said_of_a_surrogate_without_a_clip() -> None:
    assert notes(make_recipe(Path("m"), algorithm={"surrogate": "reinforce"})) == []


def test_a_recipe_that_sets_a_clip_has_one_that_binds() -> None:
    with_clip = [path for path in RECIPES.glob("*.yaml") if "clip_high" in path.read_text(encoding="utf-8")]
    assert with_clip
    for path in with_clip:
        assert not any("every policy ratio is 1" in note for note in notes(load_recipe(path))), path.name


def test_what_abort_staleness_does_to_lengths_is_said() -> None:
    rollout = {"max_staleness": 4, "abort_staleness": 2}
    (note,) = notes(make_recipe(Path("m"), rollout=rollout, trainer=TWO_STEPS))
    assert "abort_staleness 2 drops the groups that take longest" in note and "length_bias" in note


def test_that_a_cut_off_response_has_ended_for_the_critic_is_said() -> None:
    (note,) = notes(make_recipe(Path("m"), algorithm={"advantage": "gae"}, trainer=TWO_STEPS))
    assert "cut off at rollout.max_new_tokens (64) counts as ended for the critic" in note
