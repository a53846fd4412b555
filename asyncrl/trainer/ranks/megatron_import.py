"""Imports Megatron-core without W&B and, on a CPU, without torch's compiler: half of a trainer's start. Its
routers then start without Transformer Engine, too.

Megatron imports W&B, where it is installed, for a server of its own; trackers of a run are other processes.
Decorating with torch.compile imports the compiler, and on a CPU nothing is compiled (cpu.py).
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


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
