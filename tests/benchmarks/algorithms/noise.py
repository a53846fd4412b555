"""Noise of known size on the weights that sample, and on none that are trained: the axis of mismatch.

Each tensor W of a version is then W + s rms(W) N(0, 1): fresh in every version.
"""

import zlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def noised(weights: Iterable[tuple[str, Tensor]], version: int, size: float) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with noise of `size` times its root mean square."""
    for name, tensor in weights:
        source = torch.Generator().manual_seed(zlib.crc32(f"{version} {name}".encode()))
        noise = torch.randn(tensor.shape, generator=source, dtype=torch.float32).to(tensor.device)
        scale = size * tensor.float().square().mean().sqrt()
        yield name, (tensor.float() + scale * noise).to(tensor.dtype).contiguous()
