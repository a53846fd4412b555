"""One device of gloo for all groups of this process.

torch makes a device per group, each with a thread that wakes a hundred times a second. Megatron makes dozens
of groups, and again for each layout: a thousand of these threads keep half a core busy.
"""

import functools
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

NUM_THREADS = 2
"""Threads of a group, as many as torch gives it: they run its operations, and sleep otherwise."""
_init = ProcessGroupGloo.__init__


def install() -> None:
    """Groups that torch makes from here on share the device."""
    # In place: torch asks of what it has made whether it is of this class.
    ProcessGroupGloo.__init__ = _init_on_shared_device  # type: ignore[method-assign, assignment]


def _init_on_shared_device(
    group: ProcessGroupGloo, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> None:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._threads = timeout, NUM_THREADS
    options._devices = [_device()]
    _init(group, store, rank, size, options)


@functools.cache
def _device() -> object:
    return ProcessGroupGloo.create_default_device()
