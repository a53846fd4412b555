"""Checks of the section `model` against other sections: adapters, and bitwise agreement of the engines."""

from typing import Any

from asyncrl.recipe.algorithm import Algorithm
from asyncrl.recipe.lora import RATE_FACTOR
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.sections.trainer import Trainer
from asyncrl.recipe.server_options import option_names

OTHER_KERNELS = frozenset(
    f"--{name}"
    for name in (
        *("attention-backend", "prefill-attention-backend", "decode-attention-backend", "sampling-backend"),
        *("enable-deterministic-inference", "bf16-gemm-backend"),
    )
)
"""Options of a server that take its kernels from elsewhere."""


def check_agreement(model: Model, serving: Serving, trainer: Trainer, rollout: Rollout) -> None:
    if not model.bitwise_agreement:
        return
    parallel = trainer.parallel
    for key, value, wanted, why in (
        *(
            (f"trainer.parallel.{name}", size, 1, "ranks that share a model sum in another order")
            for name, size in (
                ("tensor", parallel.tensor),
                ("pipeline", parallel.pipeline),
                ("context", parallel.context),
                ("expert", parallel.expert),
            )
        ),
        ("serving.tensor_parallel_size", serving.tensor_parallel_size, 1, "ranks sum in another order"),
        ("serving.quantization", serving.quantization, None, "the trainer computes in model.dtype"),
        ("serving.kv_cache_dtype", serving.kv_cache_dtype, None, "the trainer's keys are not rounded"),
        ("serving.threads_per_server", serving.threads_per_server, 1, "threads divide a sum"),
        ("trainer.threads_per_process", trainer.threads_per_process, 1, "threads divide a sum"),
        ("trainer.attention", trainer.attention, "auto", "servers and trainer share one kernel"),
        (
            "rollout.top_k",
            rollout.top_k,
            None,
            "the share of the tokens that a server keeps is summed otherwise",
        ),
    ):
        if value != wanted:
            raise ValueError(
                f"model.bitwise_agreement is true but {key} is {value}: {why}. Set {key} to "
                f"{'null' if wanted is None else wanted}, or model.bitwise_agreement to false."
            )
    for option in option_names(serving.extra_arguments):
        if option in OTHER_KERNELS:
            raise ValueError(
                f"model.bitwise_agreement is true but serving.extra_arguments has {option}, which changes "
                f"what servers compute with. Remove it, or set model.bitwise_agreement to false."
            )


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
