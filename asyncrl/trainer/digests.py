"""What SGLang's /weights_checker will report for our weights: its fused tensors, each as a short digest.

SGLang keeps q, k, v and gate, up stacked in one parameter each, the experts of a layer in two, pads some of
them with zeros, and has no lm_head with tied embeddings. A digest is 8 bytes as 16 hex digits (`tensor_hash`
there): of a server on CPU the first of the SHA-256 over the contiguous bytes, of one on CUDA SGLang's own
hash. Trainer and servers are taken to run on the same kind of device.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

VOCABULARY = re.compile(r"model\.embed_tokens\.weight|lm_head\.weight")
VOCABULARY_MULTIPLE = 64
"""Rows of matrices over the vocabulary are padded to a multiple of this (VocabParallelEmbedding)."""
FFN_MULTIPLE = 32
"""On CPU the feed-forward width is rounded up to a multiple of this (sglang/srt/configs/update_config.py)."""
_PARTS = {
    "self_attn.q_proj": ("self_attn.qkv_proj", 0),
    "self_attn.k_proj": ("self_attn.qkv_proj", 1),
    "self_attn.v_proj": ("self_attn.qkv_proj", 2),
    "mlp.gate_proj": ("mlp.gate_up_proj", 0),
    "mlp.up_proj": ("mlp.gate_up_proj", 1),
}
_NUM_PARTS = {"self_attn.qkv_proj": 3, "mlp.gate_up_proj": 2}
_PART = re.compile(r"(.*\.)(self_attn\.[qkv]_proj|mlp\.(?:gate|up)_proj)\.(weight|bias)")
_EXPERT = re.compile(r"(.*\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


MAX_THREADS = 4
"""For digests on CPU, while the same tensors are written; no more than there are cores."""
THREADED_BYTES = 2**20
"""Smaller tensors are digested at once: that takes less time than to start a thread."""
PENDING_BYTES = 2**30
"""Of tensors that wait for their digest; above it, `add` waits too."""


class EngineDigests:
    """Digests of tensors that come one at a time, the parts of a fused one in the order of their rows.

    On CPU, threads compute them in the background; the tensors must not change before `result`.
    """

    def __init__(self, *, has_cuda: bool | None = None) -> None:
        self._has_cuda = torch.cuda.is_available() if has_cuda is None else has_cuda
        self._hashes: dict[str, _CpuDigest | _CudaDigest] = {}
        num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        # One worker per lane: the parts of a tensor share a lane, which keeps their order.
        self._lanes = [ThreadPoolExecutor(1, "digest") for _ in range(0 if self._has_cuda else num_threads)]
        self._lane_bytes = [0] * len(self._lanes)
        self._lane_of: dict[str, int] = {}
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._pending_bytes = 0

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields `weights`, under Hugging Face names, and digests them."""
        for name, tensor in weights:
            self.add(name, tensor)
            yield name, tensor

    def add(self, name: str, tensor: Tensor) -> None:
        engine_name, place, num_parts = _engine_name(name)
        padded = _pad(name, tensor, ffn_multiple=1 if self._has_cuda else FFN_MULTIPLE)
        if engine_name not in self._hashes:
            self._hashes[engine_name] = _CudaDigest(num_parts) if self._has_cuda else _CpuDigest()
            # Decided by the first of several parts, because they keep their order in one place only.
            if self._lanes and padded.nbytes >= THREADED_BYTES:
                self._lane_of[engine_name] = self._lane_bytes.index(min(self._lane_bytes))
        if engine_name in self._lane_of:
            self._submit(self._lane_of[engine_name], self._hashes[engine_name], padded, place)
        else:
            self._hashes[engine_name].add(padded, place)

    def result(self) -> dict[str, str]:
        """Engine parameter name -> digest. The last call."""
        while self._pending:
            self._wait_for_oldest()
        for lane in self._lanes:
            lane.shutdown()
        return {name: digest.result() for name, digest in self._hashes.items()}

    def _submit(self, lane: int, digest: "_CpuDigest | _CudaDigest", padded: Tensor, place: int) -> None:
        self._lane_bytes[lane] += padded.nbytes
        self._pending.append((self._lanes[lane].submit(digest.add, padded, place), padded.nbytes))
        self._pending_bytes += padded.nbytes
        while self._pending_bytes > PENDING_BYTES:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        future, num_bytes = self._pending.popleft()
        future.result()
        self._pending_bytes -= num_bytes


def engine_digests(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Engine parameter name -> digest, of weights under their Hugging Face names."""
    digests = EngineDigests()
    for name in sorted(weights, key=lambda name: _engine_name(name)[1]):
        digests.add(name, weights[name])
    return digests.result()


def tensor_digest(parts: list[Tensor]) -> str:
    """Digest of `parts` stacked along their first dimension, as a server on CPU computes it."""
    digest = _CpuDigest()
    for i, part in enumerate(parts):
        digest.add(part, i)
    return digest.result()


class _CpuDigest:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._next = 0

    def add(self, part: Tensor, place: int) -> None:
        assert place == self._next, f"part {place} of a fused tensor came where {self._next} belongs"
        self._next += 1
        self._hash.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    def result(self) -> str:
        return self._hash.digest()[:8].hex()


class _CudaDigest:
    """SGLang's Triton kernel, over the whole fused tensor: keeps the parts in the CPU's memory until then."""

    def __init__(self, num_parts: int | None) -> None:
        self._num_parts = num_parts
        self._parts: dict[int, Tensor] = {}
        self._result: str | None = None

    def add(self, part: Tensor, place: int) -> None:
        self._parts[place] = part.detach() if self._num_parts == 1 else part.detach().cpu()
        if len(self._parts) == self._num_parts:
            self._result = self._hash()

    def result(self) -> str:
        return self._hash() if self._result is None else self._result

    def _hash(self) -> str:
        from sglang.kernels.ops.memory.gpu_tensor_hash import gpu_tensor_hash

        parts = [self._parts.pop(place).cuda() for place in sorted(self._parts)]
        return f"{gpu_tensor_hash(torch.cat(parts)):016x}"


def _engine_name(name: str) -> tuple[str, int, int | None]:
    """(engine parameter, which of the parts that are stacked in it, how many; None: as many as come)."""
    if expert := _EXPERT.fullmatch(name):
        prefix, number, part = expert.groups()
        if part == "down":
            return f"{prefix}w2_weight", int(number), None
        return f"{prefix}w13_weight", 2 * int(number) + (part == "up"), None
    if match := _PART.fullmatch(name):
        prefix, part, kind = match.groups()
        fused, place = _PARTS[part]
        return f"{prefix}{fused}.{kind}", place, _NUM_PARTS[fused]
    return name, 0, 1


def _pad(name: str, tensor: Tensor, *, ffn_multiple: int) -> Tensor:
    size: tuple[int, ...]
    if VOCABULARY.fullmatch(name):
        size = (0, 0, 0, -tensor.shape[0] % VOCABULARY_MULTIPLE)
    elif name.endswith(("gate_proj.weight", "up_proj.weight")):
        size = (0, 0, 0, -tensor.shape[0] % ffn_multiple)
    elif name.endswith("down_proj.weight"):
        size = (0, -tensor.shape[1] % ffn_multiple)
    else:
        return tensor
    return torch.nn.functional.pad(tensor, size) if any(size) else tensor
