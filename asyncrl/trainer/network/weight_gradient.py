"""The gradient of the output layer's weight, summed up over chunks of tokens.

On CUDA the products are added, unrounded, to the float32 gradient that Megatron sums over micro-batches, as
its own fused layers do: there is no second matrix of this size, and each chunk costs one pass over it.

Shapes: W rows of the weight, R of them that have a gradient, H hidden size, t tokens of a chunk.
"""

import torch
from torch import Tensor

ADDING = ("cuda",)
"""Types of devices that add a product of 16-bit matrices to a float32 one."""


class WeightGradient:
    """The sum of one backward pass."""

    def __init__(self, weight: Tensor, num_rows: int, num_chunks: int) -> None:
        """`num_rows` is R; rows behind them get zeros."""
        self._weight = weight
        self._main = _main_gradient(weight)
        # The product of a single chunk is the gradient; those of several are added up in float32.
        self._is_sum = num_chunks != 1 or self._main is not None
        if self._main is not None:
            self._whole = self._main
        else:
            self._whole = torch.empty_like(weight, dtype=torch.float32 if self._is_sum else None)
            self._whole[0 if self._is_sum else num_rows :] = 0
        self._rows = self._whole[:num_rows]

    def add(self, slopes: Tensor, hidden: Tensor) -> None:
        """The part of a chunk: slopes [t, R] of its logits, and hidden [t, H]."""
        if not self._is_sum:
            torch.mm(slopes.t(), hidden, out=self._rows)
        elif slopes.is_cuda:
            into = self._rows
            if slopes.dtype is torch.float32:
                into.addmm_(slopes.t(), hidden)
            else:
                torch.addmm(into, slopes.t(), hidden, out_dtype=torch.float32, out=into)
        else:
            self._rows += slopes.t() @ hidden

    def result(self) -> Tensor:
        """[W, H], for autograd: a stand-in where Megatron has the gradient already, which it leaves unread
        or, under `zero_out_wgrad`, adds."""
        if self._main is None:
            return self._whole.to(self._weight.dtype)
        self._weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
        if getattr(self._weight, "zero_out_wgrad", False):
            return torch.zeros_like(self._weight)
        return torch.empty_like(self._weight)


def _main_gradient(weight: Tensor) -> Tensor | None:
    """The matrix that Megatron's DistributedDataParallel sums this weight's gradient in; None where products
    are not added to it."""
    main: Tensor | None = getattr(weight, "main_grad", None)
    if main is None or main.dtype is not torch.float32 or weight.device.type not in ADDING:
        return None
    return main if hasattr(weight, "grad_added_to_main_grad") else None
