"""Takes the memory of tensors away and gives it back: the tensors stay, and so does what refers to them."""

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor


def free(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Takes the memory of tensors away; each with the bytes that its storage had. Tied ones come once."""
    freed = []
    own: dict[int, Tensor] = {}
    """Address of a tensor in memory that is not torch's -> one that takes its place."""
    for tensor in tensors:
        if not tensor.untyped_storage().resizable():
            # Weights as safetensors made them: from now on in memory of torch's own.
            tensor.data = own.setdefault(tensor.data_ptr(), torch.empty_like(tensor))
        storage = tensor.untyped_storage()
        if storage.nbytes():
            freed.append((tensor, storage.nbytes()))
            storage.resize_(0)
    return freed


def allocate(freed: Iterable[tuple[Tensor, int]]) -> None:
    """Gives back what `free` took; the values are undefined."""
    for tensor, num_bytes in freed:
        tensor.untyped_storage().resize_(num_bytes)


def give_back() -> None:
    """Freed tensors of megabytes stay with the process otherwise (see engine_environment)."""
    ctypes.CDLL(None).malloc_trim(0)
