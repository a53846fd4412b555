"""Megatron-core 0.16.1 to 0.19.2 without CUDA: adapters for the places where it hard-codes "cuda".

`install` does nothing where CUDA is. Each adapter names what fails without it; none changes a number. Call it
before any other megatron import.
"""

import contextlib
import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from asyncrl.trainer.ranks import freed_memory
from asyncrl.trainer.ranks.megatron_import import import_megatron

MODULES_THAT_SAY_CUDA = (
    "megatron.core.utils",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.optimizer.optimizer",
    "megatron.core.optimizer.grad_scaler",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.dist_checkpointing.exchange_utils",
)
"""Modules that pass device="cuda" literally on the path of a step or of a checkpoint."""
FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like")

_is_installed = False


def install() -> None:
    """Makes this process's megatron-core run on CPU and gloo; idempotent, a no-op with CUDA."""
    global _is_installed
    if _is_installed or torch.cuda.is_available():
        return
    _is_installed = True
    import_megatron()
    _use_no_compiler()
    # RoPE, DDP buffers: `.to(device=torch.cuda.current_device())`.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    # Pipeline stages wait so for their messages; gloo's have arrived when they are waited for.
    torch.cuda.synchronize = lambda *_: None
    # 0.19 asks for it before each gradient sum, to wait for CUDA graphs; there are none.
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment]
    _replace_literal_devices()
    _replace_random_state()
    _accept_cpu_type_names()
    _dispatch_experts()
    _send_nothing_to_cuda()
    freed_memory.keep()


def _use_no_compiler() -> None:
    """jit_fuser is torch.compile: a C++ compiler at run time, for kernels that do not pay on a CPU."""
    import megatron.core.jit as jit

    jit.disable_jit_fuser()


def _replace_literal_devices() -> None:
    namespace = types.ModuleType("torch")
    namespace.__dict__.update(torch.__dict__)
    for name in FACTORIES:
        setattr(namespace, name, _on_cpu(getattr(torch, name)))
    for module in MODULES_THAT_SAY_CUDA:
        setattr(importlib.import_module(module), "torch", namespace)  # noqa: B010


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(*arguments: Any, **keywords: Any) -> torch.Tensor:
        if str(keywords.get("device", "")).startswith("cuda"):
            keywords["device"] = "cpu"
        return factory(*arguments, **keywords)

    return make


def _replace_random_state() -> None:
    """`model_parallel_cuda_manual_seed`, its forks and recomputation keep states of CUDA generators."""
    from megatron.core.tensor_parallel import random

    # Megatron's own tracker that tracks nothing: enough while dropout is 0, which is all we build.
    random.initialize_rng_tracker(inference_rng_tracker=True)
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _accept_cpu_type_names() -> None:
    """Clipping and two optimizers compare Tensor.type() with "torch.cuda.FloatTensor"."""
    from megatron.core.optimizer import distrib_optimizer, optimizer

    optimizer.clip_grad_by_total_norm_fp32 = _with_cuda_type_names(optimizer.clip_grad_by_total_norm_fp32)
    for kind in (optimizer.Float16OptimizerWithFloat16Params, distrib_optimizer.DistributedOptimizer):
        kind.__init__ = _with_cuda_type_names(kind.__init__)


def _dispatch_experts() -> None:
    """The dispatcher copies sizes on a CUDA stream."""
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    def sizes_to_host(self: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> Any:
        if not self.drop_and_pad and point == self.cuda_dtoh_point:
            for name in ("input_splits", "output_splits", "output_splits_tp"):
                value = getattr(self, name, None)
                if torch.is_tensor(value):
                    setattr(self, name, value.numpy())
        return tokens_per_expert

    # Not None, so that the constructor makes no stream.
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = sizes_to_host


def _with_cuda_type_names(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        with _cuda_type_names():
            return function(*arguments, **keywords)

    return call


@contextlib.contextmanager
def _cuda_type_names() -> Iterator[None]:
    original = torch.Tensor.type

    def type_(self: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        answer = original(self, *arguments, **keywords)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    torch.Tensor.type = type_  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.type = original  # type: ignore[method-assign]


def _send_nothing_to_cuda() -> None:
    """The last stage's copy of tied embeddings and the distributed optimizer's state go through `.cuda()`."""
    from megatron.core.models.common.language_module.language_module import LanguageModule
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    for owner, name in (
        (LanguageModule, "setup_embeddings_and_output_layer"),
        (DistributedOptimizer, "get_parameter_state_dp_zero"),
        (DistributedOptimizer, "load_parameter_state_from_dp_zero"),
    ):
        setattr(owner, name, _staying_here(getattr(owner, name)))


def _staying_here(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        send = torch.Tensor.cuda
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
        try:
            return function(*arguments, **keywords)
        finally:
            torch.Tensor.cuda = send  # type: ignore[method-assign]

    return call
