"""The bytes of a new version that servers read from a disk (serving.weight_transport disk), and of
the versions that trainer and servers keep in memory (serving.weight_encoding, placement.colocated)."""

from asyncrl.model.dtype import find_dtype
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Recipe

SMALL_SHARE = 0.01
"""Share of bfloat16 words that a step changes at a learning rate of 1e-5 (docs/gpus.md)."""
CHANGED_WORD_BYTES = 4
"""Bytes of a changed word of 16 bits in a delta: gap and XOR."""
MANY_BYTES = 100e9
"""Bytes read per version from which on `disk` is remarked: 20 s of a shared disk that gives 5 GB/s."""


def kept_version_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Memory in which the trainer's ranks together keep the last version: to compare the next one with, or
    for colocated servers to read."""
    is_kept = _sends_deltas(recipe, shape) or recipe.placement.colocated
    return _version_bytes(recipe, shape) if is_kept else 0


def _sends_deltas(recipe: Recipe, shape: ModelShape) -> bool:
    dtype = find_dtype(recipe, shape).name
    return recipe.serving.sends_deltas(dtype, shared_disk=recipe.cluster.shared_disk)


def version_lines(recipe: Recipe, shape: ModelShape) -> list[str]:
    """Lines of a plan: what a server reads of each version."""
    whole = f"versions   of {_version_bytes(recipe, shape) / 1e9:,.1f} GB"
    kept = kept_version_bytes(recipe, shape)
    if not kept:
        return [whole]
    if not _sends_deltas(recipe, shape):
        return [f"{whole}, which servers read from the CPU's memory (placement.colocated)"]
    delta = SMALL_SHARE * CHANGED_WORD_BYTES * num_parameters(shape)
    return [
        f"{whole}, or {delta / 1e9:,.2f} GB where {SMALL_SHARE:.0%} of the words change "
        f"(serving.weight_encoding {recipe.serving.weight_encoding}), for which the trainer keeps "
        f"{kept / 1e9:,.1f} GB in the CPU's memory and each server as much under TMPDIR"
    ]


def _version_bytes(recipe: Recipe, shape: ModelShape) -> int:
    return num_parameters(shape) * (4 if find_dtype(recipe, shape).name == "float32" else 2)


def disk_notes(recipe: Recipe, shape: ModelShape) -> list[str]:
    """A note where several servers read so much that a broadcast pays. Under adapters they read less, which
    depends on the targets, and colocated servers cannot be sent anything: none is made for either."""
    serving, num_servers = recipe.serving, recipe.serving.fleet_size()
    bytes_each = _version_bytes(recipe, shape)
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
        f"every version{' that is sent whole' if _sends_deltas(recipe, shape) else ''} "
        f"(serving.weight_transport disk). Set serving.weight_transport to distributed: the "
        f"trainer then sends them from memory to all servers at once."
    ]
