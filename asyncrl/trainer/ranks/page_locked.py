"""Host memory to copy tensors into. For a GPU it is page-locked, which the GPU fills without the CPU."""

import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory

SMALLEST_PINNED_BYTES = 2**20
"""Locking a page takes longer than copying a small tensor."""


def empty_on_host(like: Tensor) -> Tensor:
    """An empty tensor, contiguous, to be kept as long as the process: locked memory is never unlocked.

    torch's own allocator of pinned memory rounds sizes up to powers of two.
    """
    host = torch.empty(like.shape, dtype=like.dtype)
    if like.is_cuda and host.nbytes >= SMALLEST_PINNED_BYTES:
        pin_memory(host.data_ptr(), host.nbytes)
    return host
