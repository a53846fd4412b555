"""RMSNorm as one step of autograd that keeps its input and one number per token.

torch composes it of small operations: in 16 bits a dozen passes over memory, and as many tensors kept for
the backward pass. Here a slice of rows is computed in float32 by operations in place, while it stays in the
processor's cache, and is rounded once.
"""

from typing import Any

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**17
"""Numbers in a slice; 512 KiB in float32."""


def rms_norm(tokens: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang and Sennrich 2019)."""
    output: Tensor = _RMSNorm.apply(tokens, weight, epsilon)
    return output


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tokens: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        output, scale = torch.empty_like(flat), weight.float()
        inverses = flat.new_empty(len(flat), 1, dtype=torch.float32)
        for some in _rows(flat):
            x = flat[some].float()
            norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            inverses[some] = norms.square_().div_(flat.shape[1]).add_(epsilon).rsqrt_()
            output[some] = x.mul_(inverses[some]).mul_(scale)
        context.save_for_backward(flat, weight, inverses)
        return output.view(tokens.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, weight, inverses = context.saved_tensors
        gradients = gradient.reshape(flat.shape)
        to_flat, scale = torch.empty_like(flat), weight.float()
        to_weight = torch.zeros_like(scale)
        for some in _rows(flat):
            normed = flat[some].float().mul_(inverses[some])
            slopes = gradients[some].float()
            products = slopes * normed
            to_weight += products.sum(0)
            # The part of the gradient along the vector changes its length, which the norm takes out.
            along = products.mv(scale).div_(flat.shape[1])[:, None]
            slopes = slopes.mul_(scale).sub_(normed.mul_(along))
            to_flat[some] = slopes.mul_(inverses[some])
        return to_flat.view(gradient.shape), to_weight.to(weight.dtype), None


def _rows(matrix: Tensor) -> list[slice]:
    size = max(1, NUMBERS_AT_ONCE // matrix.shape[-1])
    return [slice(a, a + size) for a in range(0, len(matrix), size)]
