"""Rotary positions on a CPU as one step of autograd, in Megatron's arithmetic bit for bit.

Megatron composes them of slices and concatenations, each of them a pass over memory and another one in the
backward pass. Here halves are read where they are. A number is a sum of two products, each rounded, on both
ways: their order is no matter.

Shapes: C tokens, H heads, D head size, R of it rotated.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def turns_of(angles: Tensor) -> tuple[Tensor, Tensor]:
    """[C, 1, 1, D] angles, whose halves are equal -> cosines and sines [C, 1, D]."""
    flat = angles.squeeze(1)
    return flat.cos(), flat.sin()


def rotate(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """[C, H, D] -> [C, H, D]: x cos + (-x2, x1) sin, x1 and x2 the halves of x (Su et al. 2021)."""
    cosines, sines = (each.to(heads.dtype) for each in turns)
    rotated: Tensor = _Rotate.apply(heads, cosines, sines)
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
    def forward(context: Any, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        context.save_for_backward(cosines, sines)
        first, second = heads.chunk(2, -1)
        rotated = heads * cosines
        to_first, to_second = rotated.chunk(2, -1)
        of_first, of_second = sines.chunk(2, -1)
        to_first.sub_(second * of_first)
        to_second.add_(first * of_second)
        return rotated

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosines, sines = context.saved_tensors
        first, second = gradient.chunk(2, -1)
        turned = gradient * cosines
        to_first, to_second = turned.chunk(2, -1)
        of_first, of_second = sines.chunk(2, -1)
        to_first.add_(second * of_second)
        to_second.sub_(first * of_first)
        return turned, None, None
