"""Checks and defaults of `model.lora` against other sections."""

from typing import Any

from asyncrl.recipe.algorithm import Algorithm
from asyncrl.recipe.lora import RATE_FACTOR
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.trainer import Trainer

RATE = "learning_rate"


def check_lora(model: Model, algorithm: Algorithm, trainer: Trainer) -> None:
    if model.lora is None:
        return
    _check_kernels(model, trainer)
    if trainer.optimizer.name == "muon":
        raise ValueError(
            "trainer.optimizer is muon but model.lora is set: Muon makes the update of a whole matrix "
            "orthogonal, and that of an adapter is a product of two. Set trainer.optimizer to adam, or "
            "remove model.lora."
        )
    states = ("exp_avg_dtype", "float32"), ("exp_avg_sq_dtype", "float32"), ("optimizer_cpu_offload", False)
    for key, default in states:
        if (value := getattr(trainer, key)) != default:
            raise ValueError(
                f"trainer.{key} is {str(value).lower()} but model.lora is set: the optimizer's states are "
                f"those of the adapters alone, too few to save on. Remove trainer.{key}, or model.lora."
            )
    if trainer.router.bias_update_rate:
        raise ValueError(
            f"trainer.router.bias_update_rate is {trainer.router.bias_update_rate:g} but model.lora is set: "
            f"with adapters the base model, biases of its routers included, stays as it is. Set it to 0, or "
            f"remove model.lora."
        )
    if algorithm.kl.refresh_steps:
        raise ValueError(
            f"algorithm.kl.refresh_steps is {algorithm.kl.refresh_steps} but model.lora is "
            f"set: the reference is the base model without the adapter, of which there is no second copy. "
            f"Set algorithm.kl.refresh_steps to 0, or remove model.lora."
        )


def _check_kernels(model: Model, trainer: Trainer) -> None:
    """Raises ValueError for what needs layers, or copies of them, without adapters."""
    if model.bitwise_agreement:
        raise ValueError(
            "model.bitwise_agreement is true but model.lora is set: layers with adapters have no kernels "
            "that both engines share. Remove one of the two."
        )
    if model.dtype == "float16":
        raise ValueError(
            "model.dtype is float16 but model.lora is set: gradients of adapters have no loss scale. Set "
            "model.dtype to bfloat16 or float32, or remove model.lora."
        )
    if trainer.splits_staleness:
        raise ValueError(
            "trainer.splits_staleness is true but model.lora is set: older versions are kept as whole "
            "weights, not as adapters. Remove one of the two."
        )


def with_lora_rate(stated: Any, completed: Any) -> Any:
    """`completed`, plain data of a recipe that a preset has filled in, with the default learning rate of an
    adapter where `stated`, the recipe as it was, states none."""
    model = stated.get("model") if isinstance(stated, dict) else None
    trainer = stated.get("trainer") if isinstance(stated, dict) else None
    has_adapter = isinstance(model, dict) and isinstance(model.get("lora"), dict)
    if not has_adapter or not isinstance(trainer, dict | None) or RATE in (trainer or {}):
        return completed
    known = dict(completed.get("trainer") or {})
    rate = known.get(RATE, Trainer.model_fields[RATE].default)
    return {**completed, "trainer": {**known, RATE: RATE_FACTOR * rate}}
