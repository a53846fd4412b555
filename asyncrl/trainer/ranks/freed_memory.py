"""Freed memory of a trainer on a CPU: kept for its next tensors, until the machine runs short.

Batches differ in shape, so their tensors leave holes that the next ones do not fill: for several steps the
memory of a rank grows beyond what it holds at once.
"""

import ctypes
import logging
import platform

from asyncrl.system.machine import machine_memory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**31 - 1
"""The most that mallopt takes."""
NEVER = -1
SCARCE_SHARE = 0.1
"""Share of the memory that this process may use: where less is available, it gives back what it freed."""

log = logging.getLogger(__name__)
_is_kept = False
_has_warned = False


def keep() -> None:
    """glibc gives large freed tensors back, to be faulted in again: a tenth of a step of long sequences."""
    global _is_kept
    if platform.libc_ver()[0] == "glibc":
        _is_kept = True
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, NEVER)


def give_back_if_scarce() -> bool:
    """Whether memory was short, and all that is kept went back. Does nothing unless `keep` was called."""
    global _has_warned
    if not _is_kept:
        return False
    memory = machine_memory()
    if memory.available >= SCARCE_SHARE * memory.total:
        return False
    if not _has_warned:
        log.warning(
            "%.1f of %.1f GiB of memory is left: this rank returns freed memory to the system, which makes "
            "its steps slower. Lower trainer.tokens_per_micro_batch or set trainer.recompute to full if the "
            "kernel kills it.",
            memory.available / 2**30,
            memory.total / 2**30,
        )
        _has_warned = True
    ctypes.CDLL(None).malloc_trim(0)
    return True
