"""Core attention where layers differ, or where rotary positions are more than Megatron's own.

Shapes: Q places of all sequences, B sequences or blocks of a bucket, L places each.
"""

import dataclasses
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from asyncrl.model.shape import ModelShape
from asyncrl.trainer.packing.attention import PackedAttention, PackedSequences
from asyncrl.trainer.packing.attention_kernels import KERNELS, UNLIMITED, Limits, Rows


class LayerAttention(PackedAttention):
    """Rotates by what `LayerRotary` left for its kind of layer, or not at all; sliding windows, soft caps,
    sinks of this tensor rank's heads."""

    def __init__(
        self, config: TransformerConfig, *, layer_number: int, shape: ModelShape, **arguments: Any
    ) -> None:
        """`layer_number` counts from 1 over all stages, as Megatron does."""
        super().__init__(config, **arguments)
        self.is_rotated = layer_number - 1 not in shape.unrotated_layers
        self.is_sliding = layer_number - 1 in shape.sliding_layers
        self.limits = Limits(shape.window if self.is_sliding else None, shape.attention_cap, shape.has_sinks)
        if shape.has_sinks:
            num_heads = shape.num_heads // parallel_state.get_tensor_model_parallel_world_size()
            self.sinks = torch.nn.Parameter(torch.zeros(num_heads, dtype=config.params_dtype))
            set_tensor_model_parallel_attributes(self.sinks, True, 0, 1)

    def _rotate(self, query: Tensor, key: Tensor, sequences: PackedSequences) -> tuple[Tensor, Tensor]:
        if not self.is_rotated:
            return query, key
        assert sequences.layer_rotations is not None, "LayerRotary comes before the layers"
        turns = sequences.layer_rotations[int(self.is_sliding)]
        return turns.rotate(query), turns.rotate(key)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences, scale: float
    ) -> Tensor:
        rows, limits = sequences.rows, self.limits
        if limits.window is not None and rows.longest <= limits.window:
            limits = dataclasses.replace(limits, window=None)
        if limits == UNLIMITED:
            return super()._attend(query, key, value, sequences, scale)
        if limits.window is not None and rows.masks:
            rows = windowed_rows(sequences, limits.window)
        kernel = KERNELS[sequences.kernel]
        if not limits.has_sinks:
            return kernel.attend(query, key, value, rows, scale, limits=limits)
        group = parallel_state.get_context_parallel_group()
        # Each context rank has all tokens of its heads here: gradients of the others' are zero on it.
        sinks = self.sinks.chunk(group.size())[group.rank()]
        return kernel.attend(query, key, value, rows, scale, limits=limits, sinks=sinks)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Megatron's description of the sinks, for checkpoints."""
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True), prefix, {"sinks": 0}, sharded_offsets
        )
        return sharded


def windowed_rows(sequences: PackedSequences, window: int) -> Rows:
    """The rows on a CPU with masks that end at the window; made once for all layers."""
    found = sequences.windowed.get(window)
    if found is None:
        rows = sequences.rows
        # Not the places: in a block of sequences that share a beginning they are no positions.
        positions = sequences.positions.index_select(0, sequences.places)
        parts = positions.split([count * length for count, length in rows.buckets])
        masks = tuple(
            _windowed(mask, part.view(size), window)
            for mask, part, size in zip(rows.masks, parts, rows.buckets, strict=True)
        )
        found = sequences.windowed[window] = dataclasses.replace(rows, masks=masks)
    return found


def _windowed(mask: Tensor | None, positions: Tensor, window: int) -> Tensor:
    """[B, L, L] or None, [B, L] -> [B, L, L]."""
    length = positions.shape[1]
    looks = torch.ones(1, length, length, dtype=torch.bool).tril_() if mask is None else mask
    return looks & (positions[:, :, None] - positions[:, None, :] < window)
