"""The type of weights and activations that `model.dtype: auto` stands for, whether processes compute on GPUs,
and the bytes of a version in that type: what servers read of it from a disk (serving.weight_transport disk),
and what trainer and servers keep in memory (serving.weight_encoding, placement.colocated).
"""

from dataclasses import dataclass
from typing import Literal

from asyncrl.model.folder import read_shape
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import model_folder
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Model, Recipe
from asyncrl.system.machine import bfloat16_flag, float16_flag, has_gpu


def uses_gpu(recipe: Recipe) -> bool:
    """Looks for GPUs only where `placement.device` allows them. Raises InputError as `find_gpus` does."""
    return recipe.placement.device != "cpu" and has_gpu()


SMALL_PARAMETERS = 50_000_000
"""Smaller models stay in float32: they are fast in it, and both engines' log-probs agree to 1e-6."""

NO_BFLOAT16 = "this CPU has neither avx512_bf16 nor AMX"
EMULATED = f"emulated: {NO_BFLOAT16}, and float32 is far faster. Set model.dtype: auto"
NO_FLOAT16 = "this CPU has neither avx512_fp16 nor amx_fp16"
EMULATED_FLOAT16 = f"emulated: {NO_FLOAT16}, and float32 is faster. Set model.dtype: auto"


@dataclass(frozen=True, slots=True)
class Dtype:
    name: Literal["float32", "bfloat16", "float16"]
    why: str | None = None
    """None where the recipe says it and the machine can do it well."""

    def __str__(self) -> str:
        return self.name if self.why is None else f"{self.name} ({self.why})"


def find_dtype(recipe: Recipe, shape: ModelShape) -> Dtype:
    """The dtype that `model.dtype` means for a model of `shape` on the device that the processes use here."""
    if recipe.model.dtype == "bfloat16":
        is_slow = not uses_gpu(recipe) and bfloat16_flag() is None
        return Dtype("bfloat16", EMULATED if is_slow else None)
    if recipe.model.dtype == "float16":
        is_slow = not uses_gpu(recipe) and float16_flag() is None
        return Dtype("float16", EMULATED_FLOAT16 if is_slow else None)
    if recipe.model.dtype == "float32":
        return Dtype("float32")
    if num_parameters(shape) < SMALL_PARAMETERS:
        return Dtype("float32", f"a model below {SMALL_PARAMETERS // 10**6} M parameters")
    if uses_gpu(recipe):
        return Dtype("bfloat16", "this machine has a GPU")
    flag = bfloat16_flag()
    if flag is None:
        return Dtype("float32", NO_BFLOAT16)
    return Dtype("bfloat16", f"this CPU has {flag}")


def has_float32_head(recipe: Recipe) -> bool:
    """Whether both engines compute the logits of a 16-bit model in float32."""
    if not recipe.model.float32_logits:
        return False
    return find_dtype(recipe, read_shape(model_folder(recipe.model))).name != "float32"


def with_dtype(recipe: Recipe, shape: ModelShape) -> Model:
    """The recipe's section `model` with its type settled."""
    return recipe.model.model_copy(update={"dtype": find_dtype(recipe, shape).name})


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
