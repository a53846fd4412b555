"""Log-probs of logits that are all there at once, by autograd (logprobs.py beside it says of what).

Shapes: T response tokens, V vocabulary, E kept ids of all tokens.
"""

from typing import Any

import torch
from torch import Tensor

from asyncrl.trainer.packing.kept_sets import KeptSets, TopTokens

IMPOSSIBLE = -1e30
"""A logit of this size has a probability of exactly 0. Unlike -inf, 0 times it is no NaN."""


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    unsampled: Tensor | None = None,
    kept: KeptSets | None = None,
    top: TopTokens | None = None,
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    """[T, V], [T] -> float32 natural log-probs of the targets [T], entropies [T], with `kept` the logs of the
    kept tokens' probability [T], and with `top` the means of the teacher's likeliest [T]; all with gradient.

    `unsampled` [U] int64 are ids that are never sampled; no target is one of them. `cap` is the c of logits
    c tanh(logit / c).
    """
    if cap is not None:
        logits = cap * torch.tanh(logits.float() / cap)
    logits = logits.float() / temperature
    if unsampled is not None:
        logits = logits.index_fill(-1, unsampled, IMPOSSIBLE)
    everything = torch.log_softmax(logits, dim=-1)
    values: tuple[Tensor, ...] = (
        everything.gather(-1, targets[:, None]).squeeze(-1),
        _Entropy.apply(everything),
    )
    if top is not None:
        columns, shares = top.of_columns(0, logits.shape[-1])
        values = *values, (shares * everything.gather(-1, columns)).sum(-1)
    if kept is None:
        return values
    logs = everything[kept.rows, kept.tokens]
    largest = row_maxima(logs.detach(), kept.rows, len(targets))
    masses = torch.zeros_like(largest).index_add(0, kept.rows, (logs - largest[kept.rows]).exp())
    return *values[:2], masses.log() + largest, *values[2:]


def row_maxima(values: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """[E], [E] -> [num_rows], the largest value of each row; IMPOSSIBLE where it has none."""
    return values.new_full((num_rows,), IMPOSSIBLE).scatter_reduce(0, rows, values, "amax")


class _Entropy(torch.autograd.Function):
    """-sum p log p of log-probs [T, V]; keeps only its input, which log_softmax keeps anyway."""

    @staticmethod
    def forward(context: Any, logprobs: Tensor) -> Tensor:
        context.save_for_backward(logprobs)
        entropies: Tensor = torch.special.entr(logprobs.exp()).sum(-1)
        return entropies

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (logprobs,) = context.saved_tensors
        probabilities = logprobs.exp()
        # An impossible token adds nothing; 0 x -inf would be NaN.
        slopes = torch.where(probabilities > 0, probabilities * (logprobs + 1), 0.0)
        return -gradient[:, None] * slopes
