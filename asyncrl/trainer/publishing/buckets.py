"""The tensors of a version in buckets: which tensor lies where in which flat array of bytes.

Every rank plans the same buckets, stage by stage, before any of them is packed. What no step changes has
buckets of its own. The layout is that of
SGLang's `flattened_bucket`: the bytes of each tensor, one after the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.trainer.network.convert import ExportedTensor


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one pipeline stage that are sent at once."""

    tensors: tuple[ExportedTensor, ...]

    @property
    def stage(self) -> int:
        return self.tensors[0].stage

    @property
    def sender(self) -> int:
        """The rank that packs and sends it."""
        return self.tensors[0].sender

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(tensor) for tensor in self.tensors)

    @property
    def is_fixed(self) -> bool:
        """Whether no step changes its tensors."""
        return self.tensors[0].is_fixed

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name -> its part of `flat` [num_bytes], with its own type and shape."""
        parts = flat[: self.num_bytes].split([num_bytes(tensor) for tensor in self.tensors])
        return {
            tensor.name: part.view(tensor.dtype).view(tensor.shape)
            for tensor, part in zip(self.tensors, parts, strict=True)
        }


def num_bytes(tensor: ExportedTensor) -> int:
    return torch.Size(tensor.shape).numel() * tensor.dtype.itemsize


def plan_buckets(tensors: Iterable[ExportedTensor], *, max_bytes: int) -> list[Bucket]:
    """`tensors` in their order, cut where a bucket would exceed `max_bytes`, where a stage or what steps
    change ends, and where a tensor would not be aligned to its type. A larger tensor goes alone."""
    buckets: list[list[ExportedTensor]] = []
    size = 0
    for tensor in tensors:
        is_full = size + num_bytes(tensor) > max_bytes or size % tensor.dtype.itemsize
        kind = tensor.stage, tensor.is_fixed
        if not buckets or is_full or kind != (buckets[-1][0].stage, buckets[-1][0].is_fixed):
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += num_bytes(tensor)
    return [Bucket(tuple(bucket)) for bucket in buckets]
