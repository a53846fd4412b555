"""Checks of model.bitwise_agreement: what the recipe alone tells of why the engines could not agree."""

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
