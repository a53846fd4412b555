"""Requests of a trusted process to the kernel for itself: to die with its parent, to bound its memory, to
leave no core file."""

import contextlib
import os
import resource

from sandbox import kernel


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as `parent`, its parent, is gone; at once when it already is."""
    kernel.signal_when_parent_dies()
    if os.getppid() != parent:
        os._exit(1)


def limit_memory(limit_bytes: int) -> None:
    """Address space of this process; beyond it, an allocation raises MemoryError. Can be raised again
    later, up to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))


def no_core_file() -> None:
    """A crash of this process or its children leaves no core file."""
    # With exactly 1 a crash starts no program of the machine's either, which a core pattern that is a pipe
    # does otherwise, at a limit of 0 too.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
