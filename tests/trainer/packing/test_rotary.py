"""Rotary positions: Megatron's to the last bit, and a kernel with the values and gradients of the formula."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes.shapes import tiny_shape
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd
from torch import Tensor

from asyncrl.model.rotary import Rotation
from asyncrl.trainer.network.layer_specs import frequencies
from asyncrl.trainer.packing import rotary
from asyncrl.trainer.packing.rotary import (
    find_turn,
    rotate,
    try_turn,
    turn_by_torch,
    turn_by_triton,
    turns_of,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_are_those_of_megatron(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    # Heads as they leave the product of queries, keys and values: parts of longer rows.
    rows, gradient = (torch.randn(50, 3, 100, generator=generator).to(dtype) for _ in range(2))
    heads, gradient = rows[..., 10:42].requires_grad_(), gradient[..., 20:52]
    angles = 40 * torch.rand(50, 1, 1, 16, generator=generator).repeat(1, 1, 1, 2)
    expected = _apply_rotary_pos_emb_bshd(heads[:, None], angles)[:, 0]
    found = rotate(heads, turns_of(angles))
    assert torch.equal(found, expected)
    (own,), (other,) = (torch.autograd.grad(each, heads, gradient) for each in (found, expected))
    assert torch.equal(own, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "size"), [(1, 64), (5, 48), (14, 128)])
def test_the_kernel_has_values_and_gradients_of_the_formula(
    dtype: torch.dtype, num_heads: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="make setup TRITON=1")
    generator = torch.Generator().manual_seed(size)
    # Keys as they leave the product of queries, keys and values: with strides of longer rows.
    rows = torch.randn(9, num_heads, size + 12, generator=generator).to(dtype)
    heads = rows[..., 4 : size + 4].requires_grad_()
    gradient = torch.randn(num_heads, 9, size, generator=generator).to(dtype).transpose(0, 1)
    angles = 40 * torch.rand(9, 1, 1, size // 2, generator=generator).repeat(1, 1, 1, 2)
    exact = _apply_rotary_pos_emb_bshd(heads.double()[:, None], angles.double())[:, 0]
    monkeypatch.setattr(rotary, "find_turn", lambda *_: turn_by_triton)
    found = rotate(heads, turns_of(angles))
    (own,), (other,) = (torch.autograd.grad(each, heads, gradient.to(each.dtype)) for each in (found, exact))
    # Rounded once.
    relative = torch.finfo(dtype).eps
    assert found.dtype is dtype and (found.double() - exact).norm() <= relative * exact.norm()
    assert (own.double() - other.double()).norm() <= 2 * relative * other.double().norm()


def test_on_a_gpu_triton_rotates_if_it_works_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rotary, "try_turn", lambda turn, _, dtype: try_turn(turn, CPU, dtype))

    def found(turn: rotary.Turn, is_installed: bool = True) -> bool:
        find_turn.cache_clear()
        monkeypatch.setattr(rotary, "is_installed", lambda _: is_installed)
        monkeypatch.setattr(rotary, "turn_by_triton", turn)
        return find_turn(CUDA, torch.bfloat16) is turn

    def one_way(heads: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
        return turn_by_torch(heads, cosines, sines, 1.0)

    def raising(*_: object) -> Tensor:
        raise RuntimeError("no kernel image\nmore")

    def same(*arguments: Tensor | float) -> Tensor:
        return turn_by_torch(*arguments)  # type: ignore[arg-type]

    assert found(same) and not found(same, is_installed=False) and caplog.text == ""
    assert not found(one_way) and "triton does not work here: its numbers turned back differ" in caplog.text
    assert not found(raising) and "triton does not work here: RuntimeError: no kernel image" in caplog.text
    find_turn.cache_clear()
    assert find_turn(CPU, torch.bfloat16) is turn_by_torch


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
