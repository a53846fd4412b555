"""Compute hardware of this machine. Imports no torch."""

import functools
import importlib.metadata
import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path

from asyncrl.system.gpus import find_gpus

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Flags of a CPU, as Linux names them: instructions that multiply matrices of bfloat16."""
FLOAT16_FLAGS = ("avx512_fp16", "amx_fp16")
"""Flags of a CPU with instructions that multiply matrices of float16."""

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Variables of a process that multiplies on a CPU. oneDNN and torch keep code for each shape of a product, by
default for 1,024 shapes each: 1.8 GB after 1,200 numbers of tokens in bfloat16; 0.15 GB and as fast so."""


def torch_is_cpu_build() -> bool:
    """Whether the installed torch was built without CUDA, by its version alone."""
    return _version_of_torch(importlib.metadata.version).endswith("+cpu")


@functools.cache
def _version_of_torch(read: Callable[[str], str]) -> str:
    """Read once: a search for a layout asks thousands of times."""
    return read("torch")


def has_gpu() -> bool:
    """Whether this process may use an NVIDIA GPU and its torch can, without importing torch. Raises
    InputError as `find_gpus` does."""
    return not torch_is_cpu_build() and bool(find_gpus())


def has_transformer_engine() -> bool:
    """Whether it is installed; it is not imported."""
    return importlib.util.find_spec("transformer_engine") is not None


def has_fused_weight_gradients() -> bool:
    """Whether apex's kernel for them is installed; it is not imported."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None


def outward_address(host: str = "192.0.2.1") -> str:
    """The address of this machine on its way to `host`, or to other networks; 127.0.0.1 where there is no
    such way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel only chooses a route. The default is reserved for documentation.
            probe.connect((host, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@functools.cache
def bfloat16_flag() -> str | None:
    """The first of BFLOAT16_FLAGS that this CPU has; None where it has none or does not say."""
    return _first_flag(BFLOAT16_FLAGS)


@functools.cache
def float16_flag() -> str | None:
    """The first of FLOAT16_FLAGS that this CPU has; None where it has none or does not say."""
    return _first_flag(FLOAT16_FLAGS)


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Features of this CPU as Linux names them; none where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(flag for line in lines if line.startswith("flags") for flag in line.split()[2:])


def _first_flag(flags: tuple[str, ...]) -> str | None:
    found = cpu_flags(CPUINFO)
    return next((flag for flag in flags if flag in found), None)
