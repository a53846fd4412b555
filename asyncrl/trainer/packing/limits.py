"""Where sequences lie and what limits their attention, for any kernel; sinks over kernels that know none.

Sinks are a learned logit per head in the denominator (gpt-oss). With L the log-sum-exp of a token's scores
and s its head's sink, exp(s) is added to their sum: the outputs are multiplied by exp(L - T), T = log(exp L +
exp s). A kernel's own backward pass makes the probabilities exp(score - T) of T in the place of L, and given
these outputs it subtracts their product with the gradient: that is the gradient of a softmax with one more
score. What is left is the sink's own.

Shapes: Q places, N sequences; in a bucket B sequences, L places each; outputs [..., D], log-sum-exps [...];
sinks are broadcast over the latter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the sequences are."""

    cumulative: Tensor
    """[N + 1] int32: the place where each begins, and Q."""
    longest: int
    """Places of the longest."""
    buckets: tuple[tuple[int, int], ...]
    """(B, L) of neighbors of equal length, longest first."""
    masks: tuple[Tensor | None, ...] = ()
    """One mask [B, L, L] bool per bucket: the places that each place looks at; None where that is every place
    up to and including itself. Empty on a GPU."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Restrictions of a layer's attention beyond causality."""

    window: int | None = None
    """Tokens that a token looks at, itself included; None: all before it."""
    cap: float | None = None
    """c of scores c tanh(score / c); None: as they are."""
    has_sinks: bool = False
    """Whether each head has a logit of its own in the denominator: `sinks` [H] of a call."""


UNLIMITED = Limits()


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
