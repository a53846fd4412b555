"""The digest of a tensor, by which a server shows that it was given the trainer's bytes.

XXH3 on a CPU, SGLang's own hash on CUDA: 16 hex digits that tell damaged or stale bytes, not forged ones.
Trainer and servers are taken to run on the same kind of device. On CUDA a digest stays there until it is
read: a read waits for the device, and a version has thousands of tensors.
"""

import torch
import xxhash
from torch import Tensor

WORD_BYTES = 4
"""Size of the words that the hash reads, aligned."""
SEED = 0x243F6A88
"""As in SGLang's `gpu_tensor_hash`, as are the sizes of what one block hashes and sums."""
TILE_WORDS = 8192
BLOCK_WORDS = 256
REDUCE_CHUNK = 1024


class PendingDigests:
    """Digests by name, each taken of the tensor as it was added, whose bytes may change afterwards."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._sums: dict[str, Tensor] = {}
        """Name -> what the host makes a digest of, int64 [1] on the tensor's device."""

    def add(self, name: str, tensor: Tensor) -> None:
        """Digests `tensor` in the place of an earlier one of this name; on CUDA without waiting for it."""
        whole = _contiguous(tensor)
        if whole.is_cuda:
            self._sums[name] = _device_sum(whole)
        else:
            self._sums.pop(name, None)
            self._known[name] = xxhash.xxh3_64_hexdigest(whole.view(-1).view(torch.uint8).numpy().data)

    def read(self) -> dict[str, str]:
        """Digests of all names so far. Of those on CUDA with one copy to the host."""
        if self._sums:
            sums = torch.cat(list(self._sums.values())).tolist()
            self._known |= {name: f"{_mixed(it):016x}" for name, it in zip(self._sums, sums, strict=True)}
            self._sums.clear()
        return dict(self._known)


def tensor_digest(tensor: Tensor) -> str:
    """Digest of the contiguous bytes of `tensor`, whose shape and type do not matter."""
    pending = PendingDigests()
    pending.add("", tensor)
    return pending.read()[""]


def _contiguous(tensor: Tensor) -> Tensor:
    """The bytes in a row; on CUDA where words are aligned."""
    whole = tensor.detach().contiguous()
    if whole.is_cuda and whole.data_ptr() % WORD_BYTES:
        # A part of a bucket, behind a tensor with an odd number of 16-bit elements.
        whole = whole.clone()
    return whole


@torch.inference_mode()
def _device_sum(tensor: Tensor) -> Tensor:
    """int64 [1]: SGLang's `gpu_tensor_hash` of a CUDA tensor up to its last mixing, for which that function
    waits for the device (`_mixed`)."""
    from sglang.kernels.ops.memory import gpu_tensor_hash as sglang

    words = sglang._as_uint32_words(tensor)
    if not words.numel():
        return torch.zeros(1, dtype=torch.int64, device=words.device)
    sums = torch.empty(-(-words.numel() // TILE_WORDS), dtype=torch.uint64, device=words.device)
    sglang.hash_tiles32_kernel_blocked[(len(sums),)](
        words,
        sums,
        words.numel(),
        seed1=SEED & 0xFFFFFFFF,
        seed2=((SEED * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF,
        FM_C1=sglang.FMIX32_C1,
        FM_C2=sglang.FMIX32_C2,
        POS_A=sglang.POS_C1,
        POS_B=sglang.POS_C2,
        TILE=TILE_WORDS,
        BLOCK=BLOCK_WORDS,
        USE_CG=True,
        num_warps=4,
        num_stages=4,
    )
    while len(sums) > 1:
        size = len(sums)
        reduced = torch.empty(-(-size // REDUCE_CHUNK), dtype=torch.uint64, device=words.device)
        sglang.add_tree_reduce_u64_kernel[(len(reduced),)](sums, reduced, size, CHUNK=REDUCE_CHUNK)
        sums = reduced
    # torch joins no unsigned 64-bit numbers on CUDA.
    return sums.view(torch.int64)


def _mixed(total: int) -> int:
    """The last mixing of `gpu_tensor_hash`, of a sum that is read as signed."""
    from sglang.kernels.ops.memory.gpu_tensor_hash import _final_splitmix64

    mixed: int = _final_splitmix64(total)
    return mixed
