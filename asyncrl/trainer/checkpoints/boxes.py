"""Rectangular parts of tensors that ranks share: what torch.distributed.checkpoint writes and reads.

Boxes that cover a tensor can be read as any others, so a checkpoint does not depend on the layout that wrote
it. Owns the geometry: a rank's part is a rectangle in a model, but a range of a flattened tensor in the
distributed optimizer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

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


@dataclass(frozen=True, slots=True)
class Box:
    offset: tuple[int, ...]
    """Position of its first number in the whole tensor."""
    data: Tensor
    """With the dimensions of the whole tensor; for reading, a view of where the numbers belong."""


class SharedTensor:
    """This rank's boxes of one tensor, as torch.distributed.checkpoint asks for them (`_Checkpointable`)."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = torch.Size(shape)
        self._boxes: dict[torch.Size, Box] = {}

    def add(self, box: Box) -> None:
        offset = torch.Size(box.offset)
        assert offset not in self._boxes, f"two boxes at {box.offset}"
        self._boxes[offset] = box

    def host_copy(self, kept: "SharedTensor | None") -> "SharedTensor":
        """A copy in host memory, in that of `kept`, an earlier copy, where there is one. One from a GPU is
        complete when the GPU's stream is."""
        target = SharedTensor(self.shape) if kept is None else kept
        for offset, box in self._boxes.items():
            if kept is None:
                target.add(Box(box.offset, empty_on_host(box.data)))
            target[offset].copy_(box.data, non_blocking=True)
        return target

    def __getitem__(self, offset: torch.Size) -> Tensor:
        return self._boxes[offset].data.detach()

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, offset),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(offset, box.data.shape),
                    # Of the numbers alone: whether they are pinned or trained is the reader's matter.
                    TensorProperties(dtype=box.data.dtype),
                    self.shape,
                ),
            )
            for offset, box in self._boxes.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offset, box.data.shape) for offset, box in self._boxes.items()]


def boxes_of_range(
    shape: Sequence[int], begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offset, shape) of the boxes that make up [`begin`, `end`) of a tensor of `shape`, flattened by rows.

    In that order: of a matrix the end of a row, whole rows, and the first part of a row.
    """
    if begin >= end:
        return
    if len(shape) <= 1:
        yield ((begin,), (end - begin,)) if shape else ((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if begin < first * row:
        yield from _in_row(shape, first - 1, begin, min(end, first * row))
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if first <= last and last * row < end:
        yield from _in_row(shape, last, last * row, end)


def _in_row(
    shape: Sequence[int], number: int, begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    before = number * math.prod(shape[1:])
    for offset, size in boxes_of_range(shape[1:], begin - before, end - before):
        yield (number, *offset), (1, *size)
