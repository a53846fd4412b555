"""Keys that a recipe sets though what reads them is off."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.sections.algorithm import AlgorithmKeys
from asyncrl.recipe.unused_keys import USES, unused_keys

RECIPES = Path(__file__).parents[2] / "recipes"
ALWAYS_READ = {
    *("preset", "advantage", "credit", "divides_by_batch_std", "least_reward_spread", "proximal"),
    "routing_replay",
    *("importance_weight", "rejection", "trust_region", "surrogate", "clip_around", "reduction"),
    *("kl_coefficient", "behavior_kl_coefficient", "entropy_coefficient", "entropy_target"),
    *("entropy_control", "probability_damping", "top_entropy_share", "nll_coefficient"),
    *("cut_off_reward", "masks_cut_off", "overlong_buffer_tokens"),
}
"""Keys that choose a term, or weigh one that is there for every advantage and surrogate."""
REFUSED = {
    *("importance_floor", "dual_clip", "reference_refresh_steps", "refresh_resets_optimizer"),
    *("covariance_share", "clip_cov_low", "clip_cov_high", "kl_cov_coefficient"),
    *("entropy_step", "max_entropy_coefficient"),
}
"""Keys that recipe/algorithm.py refuses where their term is off."""
OTHER_VALUES: dict[str, Any] = {
    "part_weights": {"style": 0.5},
    "gae_is_whitened": False,
    "kl_estimator": "k2",
    "kl_in": "reward",
    "baseline_offset": -0.2,
    "gae_length_alpha": 0.05,
    "mask_high": 6.0,
    "geometric_high": 1.1,
    "importance_cap": 3.0,
    "pass_k": 3,
}
OFF = {"surrogate": "reinforce", "importance_weight": "none"}
"""A loss that reads none of the keys in USES."""


def _algorithm(**keys: Any) -> Recipe:
    return make_recipe(Path("m"), algorithm=keys, trainer={"optimizer_steps_per_batch": 2})


def test_each_key_is_always_read_or_has_a_use_or_is_refused() -> None:
    used = [key for use in USES for key in use.keys]
    assert len(used) == len(set(used))
    assert sorted([*used, *ALWAYS_READ, *REFUSED]) == sorted(AlgorithmKeys.model_fields)


@pytest.mark.parametrize("key", [key for use in USES for key in use.keys])
def test_a_key_whose_term_is_off_is_named_with_what_would_read_it(key: str) -> None:
    found = unused_keys(_algorithm(**OFF, **{key: OTHER_VALUES.get(key, 0.35)}))
    (use,) = [use for use in USES if key in use.keys]
    assert found == {f"algorithm.{key}": f"algorithm.{use.switch}"}


def test_a_key_whose_term_is_on_is_not_named() -> None:
    assert unused_keys(_algorithm(trust_region=["dppo_tv"], tv_limit=0.3)) == {}
    assert unused_keys(_algorithm(kl_coefficient=0.1, kl_estimator="k2")) == {}
    assert unused_keys(_algorithm(clip_high=0.4, importance_cap=3.0)) == {}


def test_the_default_of_another_surrogate_is_no_setting() -> None:
    assert unused_keys(_algorithm(surrogate="reinforce")) == {}
    assert unused_keys(_algorithm(surrogate="reinforce", clip_high=0.28)) != {}


def test_a_term_of_the_users_own_may_read_every_key() -> None:
    assert unused_keys(_algorithm(surrogate="my.terms:loss", tv_limit=0.3)) == {}


def test_keys_of_a_critic_that_is_not_trained_are_named() -> None:
    recipe = make_recipe(Path("m"), critic={"warmup_steps": 5})
    assert unused_keys(recipe) == {"critic.warmup_steps": "algorithm.advantage to gae"}
    with_critic = make_recipe(Path("m"), critic={"warmup_steps": 1}, algorithm={"advantage": "gae"})
    assert unused_keys(with_critic) == {}


def test_no_shipped_recipe_sets_a_key_that_nothing_reads() -> None:
    for path in sorted(RECIPES.rglob("*.yaml")):
        if path.parent.name not in ("overlays", "chains"):
            assert unused_keys(load_recipe(path)) == {}, path.name
