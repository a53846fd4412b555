"""Megatron-core 0.16.1 on a machine without CUDA: the places where it says "cuda" without asking.

`install` does nothing where CUDA is. Each adapter names what fails without it; all of them are upstream's
hard-coded devices, none changes a number. Call it before any other megatron import.
"""

import contextlib
import ctypes
import importlib
import platform
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

MODULES_THAT_SAY_CUDA = (
    "megatron.core.utils",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.optimizer.optimizer",
    "megatron.core.optimizer.clip_grads",
)
"""They pass device="cuda" literally on the path of a data-parallel step."""
FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 * 2**20

_is_installed = False


def install() -> None:
    """Makes this process's megatron-core run on CPU and gloo; idempotent, a no-op with CUDA."""
    global _is_installed
    if _is_installed or torch.cuda.is_available():
        return
    _is_installed = True
    _use_no_compiler()
    # RoPE, DDP buffers: `.to(device=torch.cuda.current_device())`.
    torch.cuda.current_device = lambda: torch.device("cpu")
    _replace_literal_devices()
    _replace_random_state()
    _accept_cpu_type_names()
    _keep_freed_memory()


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
    """`model_parallel_cuda_manual_seed` and the forks it makes keep their states in CUDA generators."""
    from megatron.core.tensor_parallel import random

    # Megatron's own tracker that tracks nothing: enough while dropout is 0, which is all we build.
    random.initialize_rng_tracker(inference_rng_tracker=True)
    torch.cuda.manual_seed = torch.manual_seed


def _accept_cpu_type_names() -> None:
    """Gradient clipping and the bfloat16 optimizer compare Tensor.type() with "torch.cuda.FloatTensor"."""
    from megatron.core.optimizer import optimizer

    optimizer.clip_grad_by_total_norm_fp32 = _with_cuda_type_names(optimizer.clip_grad_by_total_norm_fp32)
    bfloat16 = optimizer.Float16OptimizerWithFloat16Params
    bfloat16.__init__ = _with_cuda_type_names(bfloat16.__init__)


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

    torch.Tensor.type = type_
    try:
        yield
    finally:
        torch.Tensor.type = original


def _keep_freed_memory() -> None:
    """glibc gives large freed tensors back, to be faulted in again: a tenth of a step of long sequences."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
