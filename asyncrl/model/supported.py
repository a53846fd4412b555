"""Whether the trainer has all that a recipe asks of a model. No torch."""

from asyncrl.errors import InputError
from asyncrl.model.adapters import check_adapters
from asyncrl.model.bitwise import check_bitwise
from asyncrl.model.routes import check_routing_replay
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe


def check_supported(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a key that the model cannot have."""
    check_bitwise(recipe, shape)
    check_router(recipe, shape)
    check_routing_replay(recipe, shape)
    check_adapters(recipe, shape)


def check_router(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a router that Megatron has not, and for a key of `trainer.router` that the model
    has nothing for."""
    section = recipe.trainer.router
    if shape.num_experts is not None and shape.experts_per_token == 1 and shape.are_expert_weights_normalised:
        raise InputError(
            f"{recipe.model.path}: num_experts_per_tok is 1, and {shape.architecture} divides the weights of "
            f"the chosen experts by their sum, which makes every weight 1. Megatron's router does not: it "
            f"would train another model. Choose a model.path with 2 or more experts per token, or, where the "
            f"family has the setting, with norm_topk_prob false."
        )
    if section.frozen and shape.num_experts is None:
        raise InputError(
            f"trainer.router.frozen is true, but {shape.architecture} has no experts, so no routers. Remove "
            f"it."
        )
    if section.bias_update_rate and not shape.has_router_bias:
        raise InputError(
            f"trainer.router.bias_update_rate is {section.bias_update_rate:g}, but {shape.architecture} has "
            f"no routers with a bias per expert. Set it to 0."
        )
