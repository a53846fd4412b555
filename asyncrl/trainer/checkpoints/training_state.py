"""A model and its optimizer as named tensors of which each rank holds boxes, for checkpoints.

Names and places come from Megatron's own description of the model. Nothing is gathered and nothing is written
twice: of ranks that hold the same numbers each writes its share, and every rank reads all that it holds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor

from asyncrl.trainer.checkpoints.checkpoint_files import Box, SharedTensor, boxes_of_range
from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.step.optimizer_state import HeldState, held_states

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
