"""The bytes of a new version that servers read from a disk (serving.weight_transport disk)."""

from asyncrl.model.dtype import find_dtype
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Recipe

MANY_BYTES = 100e9
"""Bytes read per version from which on `disk` is remarked: 20 s of a shared disk that gives 5 GB/s."""


def disk_notes(recipe: Recipe, shape: ModelShape) -> list[str]:
    """A note where several servers read so much that a broadcast pays. Under adapters they read less, which
    depends on the targets, and colocated servers cannot be sent anything: none is made for either."""
    serving, num_servers = recipe.serving, recipe.serving.fleet_size()
    bytes_each = num_parameters(shape) * (4 if find_dtype(recipe, shape).name == "float32" else 2)
    num_bytes = num_servers * bytes_each
    if (
        serving.weight_transport != "disk"
        or recipe.placement.colocated
        or recipe.model.lora is not None
        or num_servers < 2
        or num_bytes < MANY_BYTES
    ):
        return []
    return [
        f"{num_servers} servers read {bytes_each / 1e9:,.1f} GB each, {num_bytes / 1e9:,.0f} GB in all, for "
        f"every version (serving.weight_transport disk). Set serving.weight_transport to distributed: the "
        f"trainer then sends them from memory to all servers at once."
    ]
