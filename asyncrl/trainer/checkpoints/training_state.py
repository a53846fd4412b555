"""A model and its optimizer as named tensors of which each rank holds boxes, for checkpoints.

Names and places come from Megatron's own description of the model. Nothing is gathered and nothing is written
twice: of ranks that hold the same numbers each writes its share, and every rank reads all that it holds.

Tensors are written in rectangular parts, boxes. Boxes that cover a tensor can be read as any others, so a
checkpoint does not depend on the layout that wrote it. A rank's part is a rectangle in a model, but a range
of a flattened tensor in the distributed optimizer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.step.optimizer_state import HeldState, held_states

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


EXPERTS = ".experts."


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of one of Megatron's tensors that is a stretch of one parameter."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    """Offset of the rectangle in it."""
    parameter: Tensor
    """The parameter, or a buffer."""
    data: Tensor
    """The rectangle, with the dimensions of the whole tensor; contiguous."""
    begin: int
    """Its place in the flattened parameter."""
    is_padded: bool
    """Whether the whole tensor has more rows in some layouts, which are never used."""
    is_copy: bool
    """Whether another tensor or pipeline rank holds the same and writes it."""
    data_rank: int
    num_data_ranks: int
    """This rank among the data-parallel ones, which all hold the same, and their number."""

    def own_share(self) -> tuple[int, int]:
        """The range of its flattened numbers, whole rows, that this one of the data-parallel ranks writes."""
        rows = next((size for size in self.data.shape if size > 1), 1)
        row = self.data.numel() // rows
        first, last = (rows * rank // self.num_data_ranks for rank in (self.data_rank, self.data_rank + 1))
        return first * row, last * row


def to_write(model: Policy, optimizer: MegatronOptimizer | None, prefix: str = "") -> dict[str, SharedTensor]:
    """The tensors that this rank writes; their names begin with `prefix`. A model that is not trained has no
    optimizer."""
    found: dict[str, SharedTensor] = {}
    states = {} if optimizer is None else held_states(optimizer)
    for piece in _pieces(model):
        if piece.is_copy:
            continue
        begin, end = piece.own_share()
        _add(found, f"{prefix}model.{piece.name}", piece, piece.data.view(-1)[begin:end], begin)
        if (state := states.get(piece.parameter)) is None:
            continue
        if state.num_ranks == 1:
            _add_state(found, f"{prefix}optimizer", piece, state, begin, end)
        # Experts that are not dealt are the same on all tensor ranks, which divide no state of theirs.
        elif state.num_ranks == piece.num_data_ranks or not parallel_state.get_tensor_model_parallel_rank():
            _add_state(found, f"{prefix}optimizer", piece, state, 0, piece.data.numel())
    return found


def to_read(model: Policy, optimizer: MegatronOptimizer | None, prefix: str = "") -> dict[str, SharedTensor]:
    """Where everything that this rank holds belongs."""
    found: dict[str, SharedTensor] = {}
    states = {} if optimizer is None else held_states(optimizer)
    for piece in _pieces(model):
        state = states.get(piece.parameter)
        if piece.is_padded:
            # The layout that wrote it may have had fewer rows.
            for tensor in (piece.data, *(state.tensors.values() if state else ())):
                tensor.zero_()
        _add(found, f"{prefix}model.{piece.name}", piece, piece.data.view(-1), 0)
        if state is not None:
            _add_state(found, f"{prefix}optimizer", piece, state, 0, piece.data.numel())
    return found


def _add_state(
    found: dict[str, SharedTensor], prefix: str, piece: Piece, state: HeldState, begin: int, end: int
) -> None:
    """Adds those of the numbers [begin, end) of `piece` that the optimizer holds on this rank."""
    first = max(piece.begin + begin, state.begin)
    last = max(first, min(piece.begin + end, state.end))
    for kind, tensor in state.tensors.items():
        held = tensor.view(-1)[first - state.begin : last - state.begin]
        _add(found, f"{prefix}.{kind}.{piece.name}", piece, held, first - piece.begin)


def _add(found: dict[str, SharedTensor], name: str, piece: Piece, flat: Tensor, begin: int) -> None:
    """The numbers `flat` of `piece`, from its `begin`th on, under `name`."""
    for offset, size in boxes_of_range(piece.data.shape, begin, begin + len(flat)):
        place = tuple(a + b for a, b in zip(piece.offset, offset, strict=True))
        count = math.prod(size)
        found.setdefault(name, SharedTensor(piece.shape)).add(Box(place, flat[:count].view(size)))
        flat = flat[count:]


def _pieces(model: Policy) -> Iterator[Piece]:
    for described in nested_values(model.sharded_state_dict()):
        if model.lora is not None and not getattr(described.data, "requires_grad", False):
            # The base model has its own folder.
            continue
        if isinstance(described, ShardedTensorFactory):
            # Gate and up projection are one parameter, but two rectangles of the whole tensor.
            parts = nested_values(described.build())
        elif isinstance(described, ShardedTensor):
            parts = [described]
        else:
            # Transformer Engine's extra state: scales of types that are not trained in here.
            continue
        for part in parts:
            yield _piece(described.data, part)


def _piece(parameter: Tensor, part: ShardedTensor) -> Piece:
    whole, data = parameter.detach(), part.data.detach()
    is_stretch = (
        data.is_contiguous() and data.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    )
    assert is_stretch, f"{part.key} is no stretch of a parameter"
    *others, data_rank = part.replica_id
    if EXPERTS in f".{part.key}":
        num_data_ranks = parallel_state.get_expert_data_parallel_world_size()
    else:
        num_data_ranks = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    return Piece(
        name=part.key,
        shape=part.global_shape,
        offset=part.global_offset,
        parameter=parameter,
        data=data.view((1,) * part.prepend_axis_num + data.shape),
        begin=data.storage_offset() - whole.storage_offset(),
        is_padded=part.allow_shape_mismatch,
        is_copy=any(others),
        data_rank=data_rank,
        num_data_ranks=num_data_ranks,
    )
