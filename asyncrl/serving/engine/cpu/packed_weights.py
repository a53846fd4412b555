"""Matrix products with weights in the layout that oneDNN computes in, packed once per published version.

torch's own product packs a bfloat16 weight again in each call, a fifth of a decoding step; and its float32
products are MKL's, which takes a slow path on processors that are not Intel's.
"""

import weakref

import torch
from torch import Tensor

MANY_NUMBERS = 2**20
"""Rows times the numbers of the weight: a smaller product costs less without oneDNN's set-up."""
PAYS_AFTER = 16
"""Products with one version of a weight before it is packed, which takes about what that many gain."""
TYPICAL_ROWS = 64
"""oneDNN chooses the layout for a number of rows; other numbers compute in it too."""

_version = 0
"""Version of all weights of this process."""
_all: "weakref.WeakSet[PackedWeight]" = weakref.WeakSet()


def forget() -> None:
    """The weights may have changed: packed copies, which are as large as these, go at once."""
    global _version
    _version += 1
    for weight in _all:
        weight.forget()


def version() -> int:
    """Another number after each `forget`."""
    return _version


class PackedWeight:
    """A weight [outputs, inputs] that changes in place; the caller says when (the module's `forget`)."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._packed: Tensor | None = None
        self._num_products = 0
        self._least = -(-MANY_NUMBERS // weight.shape[0])
        """Numbers of the rows from which on a product is large."""
        _all.add(self)

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def forget(self) -> None:
        self._packed, self._num_products = None, 0

    def product(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """rows @ weight.T + bias, [..., inputs] -> [..., outputs]."""
        if rows.numel() < self._least:
            return torch.nn.functional.linear(rows, self._weight, bias)
        if self._packed is None:
            self._num_products += 1
            if self._num_products <= PAYS_AFTER:
                return torch.nn.functional.linear(rows, self._weight, bias)
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, TYPICAL_ROWS)
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed, bias, "none", [], "")


def packed(weight: Tensor) -> PackedWeight | None:
    """`weight` with a place for its packed copy, kept on the tensor; None where oneDNN cannot help."""
    held = getattr(weight, "packed", None)
    if held is None and can_pack(weight):
        held = weight.packed = PackedWeight(weight)
    return held


def can_pack(weight: Tensor) -> bool:
    """Whether torch has oneDNN's products for this weight on this machine."""
    if weight.device.type != "cpu" or weight.ndim != 2 or not torch.backends.mkldnn.is_available():
        return False
    match weight.dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return torch.ops.mkldnn._is_mkldnn_bf16_supported()
        case _:
            return False
