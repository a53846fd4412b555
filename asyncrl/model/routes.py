"""Routes: the experts that a pass took at a position, layer after layer, as compact bytes.

A row has a model's layers times experts_per_token ids, one byte each, or two (little-endian) where a layer
has more than 256 experts. A sampled token has the row of the pass that sampled it: the row of the position in
front of it. So the last token of a sequence needs none, and each confirmed token has its own, whenever its
stream breaks. No torch: the controller reads this, and so do servers.
"""

from asyncrl.errors import InputError
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe

ROUTES = "routes"
"""Name of the column (`records.Columns`)."""
FIRST_ROW = "asyncrl_first_row"
"""Name under which a request says which of its positions is the first that a row is asked of."""


def expert_bytes(num_experts: int) -> int:
    """Bytes of an expert's id."""
    return 1 if num_experts <= 256 else 2


def row_bytes(shape: ModelShape) -> int:
    """Bytes of a row; 0 for a model without experts."""
    if shape.num_experts is None:
        return 0
    return shape.num_layers * shape.experts_per_token * expert_bytes(shape.num_experts)


def replayed_row_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Bytes of the row that servers send for each token; 0 where they send none."""
    return row_bytes(shape) if recipe.replays_routes() else 0


def check_routing_replay(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a model without experts."""
    replay = recipe.algorithm.routing_replay
    if replay != "none" and shape.num_experts is None:
        raise InputError(
            f"algorithm.routing_replay is {replay}, but {shape.architecture} has no experts. Remove "
            f"algorithm.routing_replay, or set model.path to a mixture of experts."
        )
