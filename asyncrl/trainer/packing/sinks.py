"""Attention sinks over kernels that know none: a learned logit per head in the denominator (gpt-oss).

With L the log-sum-exp of a token's scores and s its head's sink, exp(s) is added to their sum: the outputs
are multiplied by exp(L - T), T = log(exp L + exp s). A kernel's own backward pass makes the probabilities
exp(score - T) of T in the place of L, and given these outputs it subtracts their product with the gradient:
that is the gradient of a softmax with one more score. What is left is the sink's own.

Shapes: outputs [..., D], log-sum-exps [...]; sinks are broadcast over the latter.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(query, key, value) -> (outputs, log-sum-exps of scores, float32)."""
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(gradient of outputs, query, key, value, outputs, log-sum-exps) -> gradients of query, key and value."""


def attend_with_sinks(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, forward: Forward, backward: Backward
) -> Tensor:
    """Outputs of the kernel of `forward` and `backward` with sinks, with gradients of all four tensors."""
    output: Tensor = _Attention.apply(query, key, value, sinks, forward, backward)
    return output


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor,
        forward: Forward,
        backward: Backward,
    ) -> Tensor:
        output, sums = forward(query, key, value)
        totals = torch.logaddexp(sums, sinks.float())
        output = (output * (sums - totals).exp()[..., None]).to(query.dtype)
        context.save_for_backward(query, key, value, sinks, output, totals)
        context.backward_of_kernel = backward
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, output, totals = context.saved_tensors
        found = context.backward_of_kernel(gradient, query, key, value, output, totals)
        shares = (sinks.float() - totals).exp()
        of_sinks = -(shares * (gradient.float() * output.float()).sum(-1)).sum_to_size(sinks.shape)
        return *found, of_sinks.to(sinks.dtype), None, None
