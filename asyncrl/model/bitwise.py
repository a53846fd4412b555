"""Where model.bitwise_agreement can hold, and how a server is told of it."""

import os

from asyncrl.errors import InputError
from asyncrl.model.dtype import uses_gpu
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe

BITWISE_VARIABLE = "ASYNCRL_BITWISE_AGREEMENT"
"""Environment variable of a server: "1" where it computes log-probs by the kernels that trainers share."""


def is_bitwise() -> bool:
    """Whether this server process is one that does."""
    return os.environ.get(BITWISE_VARIABLE) == "1"


def check_bitwise(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError where the engines of `recipe` cannot agree to the last bit on a model of `shape`.

    What the recipe alone tells is refused when it is read, in asyncrl/recipe/checks/model.py.
    """
    if not recipe.model.bitwise_agreement:
        return
    if uses_gpu(recipe):
        reason = (
            "this run computes on a GPU, where SGLang and Megatron have kernels of their own "
            "(docs/agreement.md). Set placement.device to cpu"
        )
    elif shape.num_experts is not None:
        reason = f"{shape.architecture} has experts, whose products have as many rows as they get tokens"
    elif shape.has_multipliers():
        reason = f"{shape.architecture} has multipliers, which the shared kernels do not apply"
    elif not shape.is_plain():
        reason = f"{shape.architecture} has layers or rotary positions that the shared kernels do not know"
    else:
        return
    raise InputError(f"model.bitwise_agreement is true, but {reason}, or model.bitwise_agreement to false.")
