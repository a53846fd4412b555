"""Rotary positions as one step of autograd: by torch in Megatron's arithmetic bit for bit, or by one kernel.

Megatron composes them of slices and concatenations, each of them a pass over memory and another one in the
backward pass. Here halves are read where they are. A number is a sum of two products, each rounded by torch
on both ways: their order does not matter. On a GPU a kernel of Triton makes one pass, if it works there.

Shapes: C tokens, H heads, D head size, R of it rotated.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.trainer.packing.trials import find_fault, is_installed

log = logging.getLogger(__name__)

Turn = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(heads [C, H, D], cosines [C, 1, D], sines [C, 1, D] in two equal halves, sign) -> the heads rotated, or
rotated back where the sign is -1."""
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Norm of a difference from the formula in float64, relative."""


def turns_of(angles: Tensor) -> tuple[Tensor, Tensor]:
    """[C, 1, 1, D] angles, whose halves are equal -> cosines and sines [C, 1, D]."""
    flat = angles.squeeze(1)
    return flat.cos(), flat.sin()


def rotate(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """[C, H, D] -> [C, H, D]: x cos + (-x2, x1) sin, x1 and x2 the halves of x (Su et al. 2021)."""
    rotated: Tensor = _Rotate.apply(heads, *turns, find_turn(heads.device, heads.dtype))
    return rotated


@dataclass(frozen=True, slots=True)
class Turns:
    """Cosines and sines by which the first R numbers of each head are rotated; others stay as they are."""

    cosines: Tensor
    sines: Tensor
    """[C, 1, R] each, in two equal halves."""
    is_interleaved: bool = False
    """Whether neighbors turn together; else the halves of the R numbers."""

    def rotate(self, heads: Tensor) -> Tensor:
        """[C, H, D] -> [C, H, D]."""
        size = self.cosines.shape[-1]
        turned, rest = heads[..., :size], heads[..., size:]
        if self.is_interleaved:
            turned = turned.unflatten(-1, (-1, 2)).mT.flatten(-2)
        turned = rotate(turned, (self.cosines, self.sines))
        if self.is_interleaved:
            turned = turned.unflatten(-1, (2, -1)).mT.flatten(-2)
        return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, heads: Tensor, cosines: Tensor, sines: Tensor, turn: Turn) -> Tensor:
        context.save_for_backward(cosines, sines)
        context.turn = turn
        return turn(heads, cosines, sines, 1.0)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return context.turn(gradient, *context.saved_tensors, -1.0), None, None, None


def turn_by_torch(heads: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
    cosines, sines = cosines.to(heads.dtype), sines.to(heads.dtype)
    first, second = heads.chunk(2, -1)
    rotated = heads * cosines
    to_first, to_second = rotated.chunk(2, -1)
    of_first, of_second = sines.chunk(2, -1)
    to_first.add_(second * of_first, alpha=-sign)
    to_second.add_(first * of_second, alpha=sign)
    return rotated


def turn_by_triton(heads: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
    from asyncrl.trainer.packing import triton_kernels

    return triton_kernels.turn(heads, cosines, sines, sign)


@functools.cache
def find_turn(device: torch.device, dtype: torch.dtype) -> Turn:
    """`turn_by_torch` on a CPU; on a GPU `turn_by_triton`, if it works there."""
    if device.type == "cpu" or not is_installed("triton"):
        return turn_by_torch
    fault = try_turn(turn_by_triton, device, dtype)
    if fault is None:
        return turn_by_triton
    log.warning("rotary positions: triton does not work here: %s", fault)
    return turn_by_torch


def try_turn(turn: Turn, device: torch.device, dtype: torch.dtype) -> str | None:
    """Compares it with the formula, forward and back, on heads inside longer rows; returns the defect."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 3, 200, generator=generator).to(device, dtype)
    heads = rows[..., 10:138]
    angles = 40 * torch.rand(7, 1, 64, generator=generator).to(device).repeat(1, 1, 2)
    exact, signs = angles.double(), {"numbers": 1.0, "numbers turned back": -1.0}

    def compute() -> list[Tensor]:
        return [turn(heads, angles.cos(), angles.sin(), sign) for sign in signs.values()]

    expected = {
        name: turn_by_torch(heads.double(), exact.cos(), exact.sin(), sign) for name, sign in signs.items()
    }
    return find_fault(compute, expected, TOLERANCES[dtype])
