"""Core attention where layers differ, or where rotary positions are more than Megatron's own."""

from typing import Any

from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.model.shape import ModelShape
from asyncrl.trainer.packing.attention import PackedAttention, PackedSequences


class LayerAttention(PackedAttention):
    """Rotates by what `LayerRotary` left for its kind of layer, or not at all."""

    def __init__(
        self, config: TransformerConfig, *, layer_number: int, shape: ModelShape, **arguments: Any
    ) -> None:
        """`layer_number` counts from 1 over all stages, as Megatron does."""
        super().__init__(config, **arguments)
        self.is_rotated = layer_number - 1 not in shape.unrotated_layers

    def _rotate(self, query: Tensor, key: Tensor, sequences: PackedSequences) -> tuple[Tensor, Tensor]:
        if not self.is_rotated:
            return query, key
        assert sequences.layer_rotations is not None, "LayerRotary comes before the layers"
        turns = sequences.layer_rotations[0]
        return turns.rotate(query), turns.rotate(key)
