"""Angles of rotary positions are those of transformers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes.shapes import tiny_shape

from asyncrl.model.rotary import Rotation
from asyncrl.trainer.network.layer_specs import frequencies

LENGTH = 4096
KINDS: dict[str, tuple[Rotation, dict[str, Any]]] = {}
for kind, numbers in {
    "default": {},
    "linear": {"factor": 8.0},
    "llama3": {
        "factor": 32.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 5.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
}.items():
    for share in (1.0, 0.5):
        KINDS[f"{kind}, {share:g} of a head"] = (
            Rotation(5e4, kind, tuple(numbers.items()), share),
            {"rope_type": kind, "rope_theta": 5e4, "partial_rotary_factor": share, **numbers},
        )


@pytest.mark.parametrize("name", KINDS)
def test_cosines_and_sines_are_those_of_transformers(name: str) -> None:
    from transformers import Glm4Config
    from transformers.models.glm4.modeling_glm4 import Glm4RotaryEmbedding

    rotation, rope = KINDS[name]
    shape = replace(tiny_shape(), head_size=64, max_positions=LENGTH)
    config = Glm4Config(
        hidden_size=shape.num_heads * 64,
        num_attention_heads=shape.num_heads,
        max_position_embeddings=LENGTH,
        rope_parameters=rope,
        head_dim=64,
    )
    positions = torch.arange(LENGTH)[None]
    cosines, sines = Glm4RotaryEmbedding(config)(torch.zeros(1), positions)
    found, factor = frequencies(rotation, shape)
    angles = positions[0, :, None].float() * found
    for mine, theirs in ((angles.cos(), cosines), (angles.sin(), sines)):
        assert (mine * factor - theirs[0, :, : mine.shape[-1]]).abs().max() < 1e-5
