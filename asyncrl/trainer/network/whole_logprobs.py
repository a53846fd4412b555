"""Log-probs of logits that are all there at once, by autograd (logprobs.py beside it says of what).

Shapes: T response tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asyncrl.trainer.packing.columns import PredictionTerm

IMPOSSIBLE = -1e30
"""A logit of this size has a probability of exactly 0. Unlike -inf, 0 times it is no NaN."""


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    unsampled: Tensor | None = None,
    terms: Sequence[PredictionTerm] = (),
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    """[T, V], [T] -> float32 natural log-probs of the targets [T], entropies [T], and the output of each term
    [T]; all with gradient.

    `unsampled` [U] int64 are ids that are never sampled; no target is one of them. `cap` is the c of logits
    c tanh(logit / c).
    """
    if cap is not None:
        logits = cap * torch.tanh(logits.float() / cap)
    logits = logits.float() / temperature
    if unsampled is not None:
        logits = logits.index_fill(-1, unsampled, IMPOSSIBLE)
    everything = torch.log_softmax(logits, dim=-1)
    all_of_them = slice(0, len(targets))
    return (
        everything.gather(-1, targets[:, None]).squeeze(-1),
        _Entropy.apply(everything),
        *(term.value(everything[term.places(all_of_them)], all_of_them, _alone) for term in terms),
    )


def _alone(values: Tensor, operation: object = None) -> Tensor:
    """No other rank has a part of the vocabulary."""
    return values


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
