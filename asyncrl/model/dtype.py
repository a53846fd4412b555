"""The type of weights and activations that `model.dtype: auto` stands for, and whether processes compute on
GPUs.
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
