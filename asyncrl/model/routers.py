"""Which models the keys of `trainer.router` are for. No torch."""

from asyncrl.errors import InputError
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe


def check_router(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a key of `trainer.router` that the model has nothing for."""
    section = recipe.trainer.router
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
