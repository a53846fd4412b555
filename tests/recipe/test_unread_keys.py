"""Keys that a recipe sets though what reads them is off."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.unread_keys import USES

OTHER_VALUES: dict[str, Any] = {
    "algorithm.mask_high": 6.0,
    "algorithm.kl.estimator": "k2",
    "algorithm.kl.place": "reward",
    "algorithm.kl.refresh_steps": 2,
    "algorithm.kl.refresh_resets_optimizer": True,
    "trainer.loss_scale_growth_steps": 9,
}
OFF = {"surrogate": "reinforce", "importance_weight": "none"}
"""A loss that reads none of the shared numbers."""


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(("key", "switch"), [(key, use.switch) for use in USES for key in use.keys])
def test_a_key_whose_term_is_off_is_refused_with_what_would_read_it(key: str, switch: str) -> None:
    key = "critic.warmup_steps" if key == "critic" else key
    value = OTHER_VALUES.get(key, 3 if key.startswith("critic") else 0.35)
    stated = nested(key, value)
    stated["algorithm"] = OFF | stated.get("algorithm", {})
    with pytest.raises(InputError) as error:
        make_recipe(Path("m"), **stated)
    assert f"{key} is {value!r}, but nothing reads it: set {switch}, or remove it." in str(
        error.value
    ).replace("true", "True")


def make(**algorithm: Any) -> Recipe:
    return make_recipe(Path("m"), algorithm=algorithm, trainer={"optimizer_steps_per_batch": 2})


def test_a_key_whose_term_is_on_is_read() -> None:
    make(kl={"coefficient": 0.1, "estimator": "k2"}, clip_high=0.4, rejection=["token_range"], mask_low=0.6)
    make_recipe(Path("m"), critic={"warmup_steps": 1}, algorithm={"advantage": "gae"})


def test_the_default_of_another_surrogate_is_not_a_setting() -> None:
    make(surrogate="reinforce")
    with pytest.raises(InputError, match="clip_high is 0.28, but nothing reads it"):
        make(surrogate="reinforce", clip_high=0.28)


def test_a_preset_may_state_what_a_changed_recipe_no_longer_reads() -> None:
    recipe = make(preset="gspo", surrogate="reinforce")
    assert recipe.algorithm.clip_high == 4e-4
    assert make(preset="reinforce_pp", kl=0.0).algorithm.kl.estimator == "k1"
    with pytest.raises(InputError, match="clip_high is 0.3, but nothing reads it"):
        make(preset="gspo", surrogate="reinforce", clip_high=0.3)


def test_a_function_of_the_recipes_own_reads_its_options_alone() -> None:
    make(surrogate={"name": "my.terms:loss", "options": {"clip_high": 0.3}})
    with pytest.raises(InputError, match="clip_high is 0.3, but nothing reads it"):
        make(surrogate="my.terms:loss", clip_high=0.3)
