"""The digest of one tensor, by which a server shows that it was given the trainer's bytes.

XXH3 on a CPU, SGLang's own hash on CUDA: 16 hex digits that tell damaged or stale bytes, not forged ones.
Trainer and servers are taken to run on the same kind of device.
"""

import torch
import xxhash
from torch import Tensor

WORD_BYTES = 4
"""Size of the words that the hash reads, aligned."""


def tensor_digest(tensor: Tensor) -> str:
    """Digest of the contiguous bytes of `tensor`, whose shape and type do not matter."""
    whole = tensor.detach().contiguous()
    if whole.is_cuda:
        if whole.data_ptr() % WORD_BYTES:
            # A part of a bucket, behind a tensor with an odd number of 16-bit elements.
            whole = whole.clone()
        from sglang.kernels.ops.memory.gpu_tensor_hash import gpu_tensor_hash

        return f"{gpu_tensor_hash(whole):016x}"
    return xxhash.xxh3_64_hexdigest(whole.view(-1).view(torch.uint8).numpy().data)
