"""Settings of a recipe that only Transformer Engine computes, refused where it is missing. No torch."""

from asyncrl.errors import InputError
from asyncrl.model.device import uses_gpu
from asyncrl.model.dtype import find_dtype
from asyncrl.model.layout import make_layout
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe, Trainer
from asyncrl.system.machine import has_transformer_engine

INSTALL = "install Transformer Engine (docs/gpus.md)"


def check_packages(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for what this machine cannot compute, with the key and the reason."""
    on_gpu = uses_gpu(recipe)
    if on_gpu and shape.num_experts is not None and not has_transformer_engine():
        raise InputError(
            f"model.path has {shape.num_experts} experts per layer. On a GPU Megatron-core computes them by "
            f"Transformer Engine's grouped products, which is not installed: its router does not start "
            f"without it, and one product per expert would leave a GPU idle. Either {INSTALL}, take a model "
            f"without experts, or set placement.device to cpu."
        )
    for key, value in _state_options(recipe.trainer):
        _check_state(key, value, recipe, shape, on_gpu=on_gpu)
    if recipe.trainer.optimizer_cpu_offload and len(_state_options(recipe.trainer)) > 1:
        raise InputError(
            "trainer.optimizer_cpu_offload is true, and trainer.exp_avg_dtype or trainer.exp_avg_sq_dtype is "
            "bfloat16: states in host memory are float32, as torch's Adam has them. Set one of the two back."
        )


def _state_options(section: Trainer) -> list[tuple[str, object]]:
    """(key, value) of those that are not as by default; offloading first."""
    options = {"optimizer_cpu_offload": False, "exp_avg_dtype": "float32", "exp_avg_sq_dtype": "float32"}
    given = {key: getattr(section, key) for key in options}
    return [(key, value) for key, value in given.items() if value != options[key]]


def _check_state(key: str, value: object, recipe: Recipe, shape: ModelShape, *, on_gpu: bool) -> None:
    reason = None
    dtype = find_dtype(recipe, shape).name
    if not on_gpu:
        reason = "this run trains on a CPU: its states are in host memory, in torch's Adam, as float32"
    elif not has_transformer_engine():
        reason = f"it needs Transformer Engine, which is not installed: {INSTALL}"
    elif not make_layout(recipe).is_optimizer_distributed:
        reason = (
            "Megatron-core has it only with its distributed optimizer: set "
            "trainer.parallel.distributed_optimizer"
        )
    elif dtype != "bfloat16":
        reason = f"it is for models in bfloat16, and model.dtype is {dtype}"
    if reason is not None:
        default = "false" if value is True else "float32"
        said = str(value).lower()
        raise InputError(f"trainer.{key} is {said}, but {reason}. Or set trainer.{key} to {default}.")
