"""RMSNorm as one step of autograd that keeps its input and one number per token.

torch composes it of small operations: a dozen passes over memory, and as many tensors kept for the backward
pass. Here a slice of rows is computed in float32 by operations in place, while it stays in the processor's
cache. In 16 bits it is rounded once; in float32 each operation is torch's, in its order, so that values and
gradients are torch's bit for bit.
"""

from typing import Any

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**17
"""Numbers in a slice; 512 KiB in float32."""


def rms_norm(tokens: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang and Sennrich 2019)."""
    output: Tensor
    if tokens.dtype is torch.float32:
        output = _AsTorch.apply(tokens, tokens, weight, epsilon)
    else:
        output = _RMSNorm.apply(tokens, weight, epsilon)
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


class _AsTorch(torch.autograd.Function):
    """torch.nn.functional.rms_norm of float32 numbers on a CPU and its gradient, bit for bit.

    It takes the tokens twice, as the two factors of torch's products: their gradients reach a residual one
    after the other, and their sum at once would round otherwise.
    """

    @staticmethod
    def forward(context: Any, tokens: Tensor, _: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        output, inverses = torch.empty_like(flat), flat.new_empty(len(flat), 1)
        for some in _rows(flat):
            x, own = flat[some], output[some]
            torch.mul(x, x, out=own)
            inverses[some] = own.mean(-1, keepdim=True).add_(epsilon).rsqrt_()
            torch.mul(x, inverses[some], out=own).mul_(weight)
        context.save_for_backward(flat, weight, inverses)
        return output.view(tokens.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        flat, weight, inverses = context.saved_tensors
        gradients = gradient.reshape(flat.shape)
        scaled, of_length = torch.empty_like(flat), torch.empty_like(flat)
        # torch adds up all rows at once: other slices of the sum would round otherwise.
        products = torch.empty_like(flat) if context.needs_input_grad[2] else None
        for some in _rows(flat):
            x, own, inverse = flat[some], scaled[some], inverses[some]
            if products is not None:
                torch.mul(x, inverse, out=products[some]).mul_(gradients[some])
            torch.mul(gradients[some], weight, out=own)
            part = torch.mul(own, x, out=of_length[some])
            along = part.sum(-1, keepdim=True).mul_(-0.5).mul_(inverse.pow(3)).div_(flat.shape[1])
            own.mul_(inverse)
            torch.mul(x, 2, out=part).mul_(along)
        to_weight = None if products is None else products.sum(0)
        return scaled.view(gradient.shape), of_length.view(gradient.shape), to_weight, None


def _rows(matrix: Tensor) -> list[slice]:
    size = max(1, NUMBERS_AT_ONCE // matrix.shape[-1])
    return [slice(a, a + size) for a in range(0, len(matrix), size)]
