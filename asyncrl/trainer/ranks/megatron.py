"""Megatron-core 0.16.1 to 0.19.2 as this process needs it: imported without what slows its start, and with
adapters for the places where it hard-codes "cuda" on a machine that has none.

Megatron imports W&B, where it is installed, for a server of its own; trackers of a run are other processes.
Decorating with torch.compile imports the compiler, and on a CPU nothing is compiled: without both a trainer
starts in half the time. Each adapter names what fails without it; none changes a number.
"""

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from asyncrl.trainer.ranks import freed_memory

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


def run_on_cpu() -> None:
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


def import_megatron() -> None:
    """Call it before any other import of megatron; idempotent."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_hidden("wandb"))
        if not torch.cuda.is_available():
            stack.enter_context(_without_compiler())
        import megatron.core  # noqa: F401

        _bind_engines_product()


def _bind_engines_product() -> None:
    """0.16.1's router looks for Transformer Engine's product under a name that is unbound without it."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Importing `name` fails meanwhile, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Functions decorated with torch.compile meanwhile stay as they are."""
    original = torch.compile
    torch.compile = _unchanged  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = original


def _unchanged(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    return (lambda decorated: decorated) if function is None else function


def parts_of(spec: Any) -> Any:
    """The `submodules` of a spec, to be read and replaced: of a ModuleSpec, or of the partial call of a class
    that Megatron-core 0.19 has in its place for feed-forward networks and experts."""
    return spec.keywords["submodules"] if isinstance(spec, functools.partial) else spec.submodules
