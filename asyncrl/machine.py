"""What this machine can compute with. Imports no torch."""

import functools
import importlib.metadata
from pathlib import Path

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Of a CPU, as Linux names them: instructions that multiply matrices of bfloat16."""

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Variables of a process that multiplies on a CPU. oneDNN and torch keep code for each shape of a product, by
default for 1,024 shapes each: 1.8 GB after 1,200 numbers of tokens in bfloat16; 0.15 GB and as fast so."""


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU and a torch that can use it, without importing torch."""
    is_cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    return not is_cpu_build and any(Path("/dev").glob("nvidia[0-9]*"))


@functools.cache
def bfloat16_flag() -> str | None:
    """The first of BFLOAT16_FLAGS that this CPU has; None where it has none or does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    found = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    return next((flag for flag in BFLOAT16_FLAGS if flag in found), None)
