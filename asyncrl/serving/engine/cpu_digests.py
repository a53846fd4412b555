"""The digests of a server's weights on a CPU, by several threads: SGLang 0.5.23 hashes one tensor at a time.

The server is paused meanwhile and the trainer waits for it, so there are cores; hashlib releases the GIL.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

MAX_THREADS = 4
THREADED_BYTES = 2**20
"""Smaller tensors are hashed at once: in less time than a thread takes to start."""


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.utils.weight_checker.WeightChecker._compute_checksum", _hash_in_threads, HookType.REPLACE
    )


def _hash_in_threads(checker, skip_tensor_list=None, *, role):
    """What the replaced method returns."""
    from sglang.srt.utils import weight_checker

    entries = weight_checker._build_check_entries(
        dict(checker._model_state()),
        checker._skip_compare_names(skip_tensor_list),
        weight_checker._build_quantized_set(checker._get_model()),
    )
    compared = [entry for entry in entries if entry.should_compare]
    tensors = {entry.name: entry.comparable.dequantize().data for entry in compared}
    large = [name for name, tensor in tensors.items() if tensor.nbytes >= THREADED_BYTES]
    with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
        hashes = pool.map(weight_checker._hash_tensor, map(tensors.get, large))
        small = {
            name: weight_checker._hash_tensor(tensor)
            for name, tensor in tensors.items()
            if tensor.nbytes < THREADED_BYTES
        }
        checksums = small | dict(zip(large, hashes, strict=True))
    info = weight_checker.ChecksumInfo(
        checksums=checksums,
        per_gpu_checksum=weight_checker.overall_checksum(checksums),
        parallelism_info=checker._parallelism_info(role=role),
    )
    return info.model_dump()
