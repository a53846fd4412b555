"""Routers that are trained, and keys of `trainer.router` against models that have nothing for them."""

import dataclasses
from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import check_router
from asyncrl.recipe import Recipe

EXPERTS = dataclasses.replace(
    tiny_shape(), architecture="Qwen3MoeForCausalLM", num_experts=4, expert_ffn_size=16, experts_per_token=2
)
BIASED = dataclasses.replace(
    EXPERTS, architecture="Glm4MoeForCausalLM", router_scores="sigmoid", has_router_bias=True
)


def recipe_of(**router: object) -> Recipe:
    return make_recipe(Path("m"), trainer={"router": router})


def test_frozen_routers_are_for_models_with_experts():
    for shape in (EXPERTS, BIASED):
        check_router(recipe_of(frozen=True), shape)
    with pytest.raises(
        InputError, match=r"trainer.router.frozen is true, but Qwen3ForCausalLM has no experts"
    ):
        check_router(recipe_of(frozen=True), tiny_shape())


def test_biases_that_follow_loads_are_for_routers_that_have_some():
    check_router(recipe_of(bias_update_rate=0.001), BIASED)
    for shape in (tiny_shape(), EXPERTS):
        sentence = (
            f"bias_update_rate is 0.001, but {shape.architecture} has no routers with a bias per expert"
        )
        with pytest.raises(InputError, match=sentence):
            check_router(recipe_of(bias_update_rate=0.001), shape)


def test_a_recipe_that_leaves_routers_alone_is_for_any_model():
    for shape in (tiny_shape(), EXPERTS, BIASED):
        check_router(recipe_of(), shape)


@pytest.mark.parametrize("shape", [EXPERTS, BIASED])
def test_one_expert_per_token_is_refused_where_its_weight_is_divided_by_itself(shape: ModelShape):
    one = dataclasses.replace(shape, experts_per_token=1)
    with pytest.raises(InputError, match=r"m: num_experts_per_tok is 1, .* makes every weight 1"):
        check_router(recipe_of(), one)
    check_router(recipe_of(), dataclasses.replace(one, are_expert_weights_normalised=False))
