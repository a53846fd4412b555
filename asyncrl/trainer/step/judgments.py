"""Judgments of terms over a whole optimizer step, all micro-batches and ranks, made before its loss.

It is judged by the policy before the batch: at one optimizer step per batch the one in training, whose
log-probs then cost a forward pass of their own. Entropies are those of the policy in training.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.rejections import find_second_moment_bound
from asyncrl.trainer.network.model import device
from asyncrl.trainer.step.totals import sum_over_ranks


class Judged(NamedTuple):
    """Judgments that the loss of one micro-batch uses."""

    second_moment_bound: float = math.inf
    hit: Tensor | None = None
    """[T] bool, the tokens that algorithm.entropy_control holds back."""
    is_top: Tensor | None = None
    """[T] bool, the tokens of the highest entropy."""


class Judgments(NamedTuple):
    """Judgments of one optimizer step on this rank; lists are by micro-batch."""

    second_moment_bound: float = math.inf
    hits: list[Tensor] | None = None
    are_top: list[Tensor] | None = None

    def of(self, index: int) -> Judged:
        return Judged(
            self.second_moment_bound,
            self.hits[index] if self.hits else None,
            self.are_top[index] if self.are_top else None,
        )


def second_moment_bound(squares: Sequence[Tensor], limit: float) -> float:
    """Bound of the rejection second_moment, the same on every rank. `squares` are this rank's, by micro-batch
    on the CPU: empty on all pipeline stages but the last."""
    own = torch.cat(list(squares)) if squares else torch.zeros(0, dtype=torch.float64)

    def count_and_sum(bound: float) -> tuple[float, float]:
        kept = own[own <= bound]
        sums = torch.stack([kept.new_tensor(len(kept)), kept.sum()]).to(device())
        count, total = sum_over_ranks([sums], 2).tolist()
        return count, total

    return find_second_moment_bound(count_and_sum, limit)
