"""Whether the trainer has all that a recipe asks of a model. No torch."""

from asyncrl.model.adapters import check_adapters
from asyncrl.model.bitwise import check_bitwise
from asyncrl.model.routers import check_router
from asyncrl.model.routes import check_routing_replay
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe


def check_supported(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a key that the model cannot have."""
    check_bitwise(recipe, shape)
    check_router(recipe, shape)
    check_routing_replay(recipe, shape)
    check_adapters(recipe, shape)
