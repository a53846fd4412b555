"""What SGLang's /weights_checker will report for our weights: its fused tensors, each as a short digest.

SGLang keeps q, k, v and gate, up stacked in one parameter each, pads some of them with zeros, and has no
lm_head with tied embeddings. A digest is the first 8 bytes of the SHA-256 over the contiguous bytes, as 16
hex digits (its tensor_hash on CPU).
"""

import hashlib
import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
VOCABULARY = re.compile(r"model\.embed_tokens\.weight|lm_head\.weight")
VOCABULARY_MULTIPLE = 64
"""Rows of matrices over the vocabulary are padded to a multiple of this (VocabParallelEmbedding)."""
FFN_MULTIPLE = 32
"""On CPU the feed-forward width is rounded up to a multiple of this (sglang/srt/configs/update_config.py)."""
_FUSED_OF = {part: (fused, parts) for fused, parts in FUSED.items() for part in parts}
_PART = re.compile(r"(.*\.)(self_attn\.[qkv]_proj|mlp\.(?:gate|up)_proj)\.(weight|bias)")


def engine_digests(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Engine parameter name -> digest, of weights under their Hugging Face names."""
    return {name: tensor_digest(parts) for name, parts in engine_tensors(weights)}


def engine_tensors(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """(engine parameter name, the tensors that are stacked row-wise in it)."""
    weights = {name: _pad(name, tensor) for name, tensor in weights.items()}
    for name, tensor in weights.items():
        match = _PART.fullmatch(name)
        if match is None:
            yield name, [tensor]
            continue
        prefix, part, kind = match.groups()
        fused, parts = _FUSED_OF[part]
        if part == parts[0]:
            yield f"{prefix}{fused}.{kind}", [weights[f"{prefix}{each}.{kind}"] for each in parts]


def _pad(name: str, tensor: Tensor) -> Tensor:
    if VOCABULARY.fullmatch(name):
        size = (0, 0, 0, -tensor.shape[0] % VOCABULARY_MULTIPLE)
    elif name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
        size = (0, 0, 0, -tensor.shape[0] % FFN_MULTIPLE)
    elif name.endswith("mlp.down_proj.weight"):
        size = (0, -tensor.shape[1] % FFN_MULTIPLE)
    else:
        return tensor
    return torch.nn.functional.pad(tensor, size) if any(size) else tensor


def tensor_digest(parts: list[Tensor]) -> str:
    """Digest of `parts` stacked along their first dimension, as a server on CPU computes it.

    A server on CUDA uses SGLang's gpu_tensor_hash, a Triton kernel, and does not round the width up:
    the seam for it is here.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(memoryview(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()))
    return digest.digest()[:8].hex()
