"""Rotary position embedding and RMSNorm in few passes over small tensors.

At 64 rows such an operation costs its set-up, not its arithmetic, and SGLang composes both of a dozen.

Shapes: N tokens, H heads, D head size, P positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


class Rotation:
    """Cosines and sines of all positions, ready for `at`; from [P, D] half cosines, half sines."""

    def __init__(self, cosines_sines: Tensor) -> None:
        self.source = cosines_sines
        cosines, sines = cosines_sines.chunk(2, -1)
        self._cosines = torch.cat((cosines, cosines), -1)
        self._sines = torch.cat((-sines, sines), -1)

    def at(self, positions: Tensor) -> "Turn":
        """For positions [N]; one for all layers of a step."""
        cosines = self._cosines.index_select(0, positions).unsqueeze(1)
        return Turn(cosines, self._sines.index_select(0, positions).unsqueeze(1))


@dataclass(frozen=True, slots=True)
class Turn:
    """The first half of a head turns against its second (Su et al. 2021); [N, 1, D] each."""

    cosines: Tensor
    sines: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """[N, H, D] -> [N, H, D]."""
        return torch.addcmul(heads * self.cosines, heads.roll(heads.shape[-1] // 2, -1), self.sines)


def joined(first: Tensor, second: Tensor) -> Tensor | None:
    """[N, A] and [N, B] as one view [N, A + B] where they are neighbours in memory, else None."""
    is_one = (
        first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and first.dtype == second.dtype
        and first.stride() == second.stride()
        and first.stride(1) == 1
        and first.storage_offset() + first.shape[1] == second.storage_offset()
    )
    if not is_one:
        return None
    width = first.shape[1] + second.shape[1]
    return first.as_strided((first.shape[0], width), first.stride(), first.storage_offset())


def rms_norm(
    tokens: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The norm of tokens + residual [N, any], and that sum, rounded as the next layer reads it."""
    total = tokens if residual is None else tokens + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, epsilon), total
