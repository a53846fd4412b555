"""Whether the processes of a recipe compute on GPUs. No torch."""

from asyncrl.recipe import Recipe
from asyncrl.system.machine import has_gpu


def uses_gpu(recipe: Recipe) -> bool:
    """Looks for GPUs only where `placement.device` allows them. Raises InputError as `find_gpus` does."""
    return recipe.placement.device != "cpu" and has_gpu()
