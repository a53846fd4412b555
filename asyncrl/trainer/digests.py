"""What SGLang's /weights_checker will report for our weights: its fused tensors, each as a short digest.

SGLang keeps q, k, v and gate, up stacked in one parameter each and pads the vocabulary with rows of zeros to
a multiple of 64; with tied embeddings there is no lm_head. A digest is the first 8 bytes of the SHA-256 over
the contiguous bytes, as 16 hex digits (tensor_hash on CPU).
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
VOCABULARY_TENSORS = ("model.embed_tokens.weight", "lm_head.weight")
VOCABULARY_PADDING = 64
FFN_MULTIPLE = 32
"""A server on CPU rounds the feed-forward width up to a multiple of this (sglang/srt/configs/update_config.py)."""
_FUSED_OF = {part: (fused, parts) for fused, parts in FUSED.items() for part in parts}
_PART = re.compile(r"(.*\.)(self_attn\.[qkv]_proj|mlp\.(?:gate|up)_proj)\.(weight|bias)")


def engine_digests(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Engine parameter name -> digest, of weights under their Hugging Face names."""
    return {name: tensor_digest(parts) for name, parts in engine_tensors(weights)}


def engine_tensors(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """(engine parameter name, the tensors that are stacked row-wise in it)."""
    weights = {name: _pad_ffn(name, tensor) for name, tensor in weights.items()}
    for name, tensor in weights.items():
        match = _PART.fullmatch(name)
        if match is None:
            yield name, [tensor, *_padding(name, tensor)]
            continue
        prefix, part, kind = match.groups()
        fused, parts = _FUSED_OF[part]
        if part == parts[0]:
            yield f"{prefix}{fused}.{kind}", [weights[f"{prefix}{each}.{kind}"] for each in parts]


def _padding(name: str, tensor: Tensor) -> list[Tensor]:
    """The rows of zeros below a matrix over the vocabulary (VocabParallelEmbedding, one rank)."""
    if name not in VOCABULARY_TENSORS:
        return []
    num_rows = -tensor.shape[0] % VOCABULARY_PADDING
    return [tensor.new_zeros(num_rows, *tensor.shape[1:])] if num_rows else []


def _pad_ffn(name: str, tensor: Tensor) -> Tensor:
    """gate and up grow by rows, down by columns."""
    dimension = 1 if name.endswith("mlp.down_proj.weight") else 0
    missing = -tensor.shape[dimension] % FFN_MULTIPLE
    if ".mlp." not in name or not missing:
        return tensor
    return torch.nn.functional.pad(tensor, (0, missing) if dimension else (0, 0, 0, missing))


def tensor_digest(parts: list[Tensor]) -> str:
    """Digest of `parts` stacked along their first dimension, as a server on CPU computes it.

    A server on CUDA uses SGLang's gpu_tensor_hash (a Triton kernel) and no padding: the seam for it is here.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(memoryview(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()))
    return digest.digest()[:8].hex()
