"""Rows of a tensor picked by their places, one row perhaps many times, with gradients summed in float32.

torch sums the gradients of `index_select` in their own dtype on a GPU: in bfloat16 a row that is picked by
hundreds of responses to one prompt loses what each further one adds.
"""

from typing import Any

import torch
from torch import Tensor


def pick_rows(rows: Tensor, places: Tensor) -> Tensor:
    """[N, ...], [K] -> [K, ...]."""
    picked: Tensor = _PickRows.apply(rows, places)
    return picked


class _PickRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor) -> Tensor:
        context.save_for_backward(places)
        context.num_rows = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = context.saved_tensors
        # On a CPU torch keeps such sums in float32 by itself.
        picked = gradient if gradient.device.type == "cpu" else gradient.float()
        rows = picked.new_zeros(context.num_rows, *picked.shape[1:])
        return rows.index_add_(0, places, picked).to(gradient.dtype), None
