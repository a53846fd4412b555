"""Rotary positions beyond Megatron's own: scaled, partial, interleaved, or other ones in some layers.

Cosines and sines are computed once per micro-batch for all layers, by transformers' own frequencies; each
layer's attention rotates by those of its kind, on a GPU too.

Shapes: C tokens of this context-parallel rank, H heads, D head size, R of it rotated.
"""

from typing import Any

import torch
from torch import Tensor

from asyncrl.model.rotary import LLAMA3_ROPE, Rotation
from asyncrl.model.shape import ModelShape
from asyncrl.trainer.packing.attention import PackedSequences, own_tokens
from asyncrl.trainer.packing.rotary import Turns, turns_of


def frequencies(rotation: Rotation, shape: ModelShape) -> tuple[Tensor, float]:
    """([R / 2] float32 angles per position, factor of cosines and sines), as transformers has them."""
    rotated = int(shape.rotary_size * rotation.share)
    if rotation.kind == "default":
        return 1.0 / rotation.theta ** (torch.arange(0, rotated, 2).float() / rotated), 1.0
    # A second to import, and the usual kind needs nothing of it.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        head_dim=shape.rotary_size,
        max_position_embeddings=shape.max_positions,
        rope_parameters={
            "rope_type": rotation.kind,
            "rope_theta": rotation.theta,
            "partial_rotary_factor": rotation.share,
            **dict(rotation.numbers),
            **_kinds_own(rotation),
        },
    )
    found, factor = ROPE_INIT_FUNCTIONS[rotation.kind](config, torch.device("cpu"))
    return found, float(factor)


def _kinds_own(rotation: Rotation) -> dict[str, Any]:
    """Settings of a kind beside its numbers; no sequence reaches the long factors."""
    if rotation.kind == "yarn":
        return {"truncate": rotation.is_truncated}
    return {name: list(rotation.factors) for name in ("short_factor", "long_factor") if rotation.factors}


class LayerRotary(torch.nn.Module):
    """Megatron's rotary module of a model whose attention rotates by itself (`LayerAttention`)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        usual = usual_rotation(shape)
        self._rotations = (usual, shape.sliding_rotation or usual)
        self._found = [frequencies(rotation, shape) for rotation in self._rotations]

    def get_rotary_seq_len(self, *arguments: Any) -> PackedSequences:
        sequences: PackedSequences = arguments[-1]
        return sequences

    def forward(self, sequences: PackedSequences, **_: Any) -> None:
        """Leaves what attention rotates by: of full layers and of sliding ones."""
        positions = own_tokens(sequences.positions).float()
        full = self._turns(0, positions)
        is_other = self._rotations[1] != self._rotations[0]
        sequences.layer_rotations = full, self._turns(1, positions) if is_other else full

    def _turns(self, kind: int, positions: Tensor) -> Turns:
        (found, factor), rotation = self._found[kind], self._rotations[kind]
        angles = positions[:, None] * found.to(positions.device)
        cosines, sines = turns_of(torch.cat([angles, angles], -1)[:, None, None])
        return Turns(cosines * factor, sines * factor, rotation.is_interleaved)


def usual_rotation(shape: ModelShape) -> Rotation:
    """The rotation of full layers."""
    if shape.rotation is not None:
        return shape.rotation
    if shape.rope_scaling_factor is None:
        return Rotation(shape.rope_theta)
    return Rotation(shape.rope_theta, "llama3", (("factor", shape.rope_scaling_factor), *LLAMA3_ROPE.items()))
