"""Settings that the trainer lacks for want of a package, refused, and what is slower for it. No torch."""

from asyncrl.errors import InputError
from asyncrl.model.device import uses_gpu
from asyncrl.model.dtype import find_dtype
from asyncrl.model.layout import make_layout
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe, Trainer
from asyncrl.system.machine import has_fused_weight_gradients, has_transformer_engine

INSTALL = "install Transformer Engine (docs/gpus.md)"


def check_packages(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for what this machine cannot compute, with the key and the reason."""
    on_gpu = uses_gpu(recipe)
    for key, value in _state_options(recipe.trainer):
        _check_state(key, value, recipe, shape, on_gpu=on_gpu)
    if recipe.trainer.optimizer_cpu_offload and len(_state_options(recipe.trainer)) > 1:
        raise InputError(
            "trainer.optimizer_cpu_offload is true, and trainer.exp_avg_dtype or trainer.exp_avg_sq_dtype is "
            "bfloat16: states in host memory are float32, as torch's Adam has them. Set one of the two back."
        )


def slower_parts(recipe: Recipe, shape: ModelShape) -> list[str]:
    """A sentence per part of the trainer that this machine's GPUs compute slower for want of a package, with
    its name; none on a CPU. Log-probs and gradients are the same either way, up to rounding."""
    if recipe.cluster.backend != "local" or not uses_gpu(recipe):
        return []
    engine, parts = "Transformer Engine is not installed", []
    if not has_transformer_engine():
        if shape.num_experts is not None:
            parts.append(
                f"{engine}: experts are computed one after the other, {shape.num_experts} in each of "
                f"{shape.expert_layers()} layers, not by grouped products; small ones leave a GPU idle"
            )
        parts.append(f"{engine}: norms and rotary positions are several kernels each")
    if not has_fused_weight_gradients():
        parts.append(
            "apex is not installed: weight gradients are added to the float32 ones by kernels of their own"
        )
    return parts


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
