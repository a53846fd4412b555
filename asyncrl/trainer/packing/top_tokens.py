"""A teacher's likeliest tokens in micro-batches: what the policy thinks of them, for the forward KL.

Shapes: K distinct predictions, k likeliest tokens at each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from asyncrl.model.column_bytes import TEACHER_TOP, split_top, unpack_top
from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.columns import PredictionColumn, PredictionTerm, Reduce, on_gpu


class TopColumn(PredictionColumn):
    name: ClassVar = TEACHER_TOP

    def values(self, sequence: ScoredSequence) -> list[bytes]:
        return split_top(sequence.columns.get(TEACHER_TOP, b""), sequence.num_sampled())

    def term(self, values: Sequence[bytes], targets: np.ndarray) -> "TopTokens":
        return unpack_top_tokens(values)


@dataclass(frozen=True, slots=True)
class TopTokens(PredictionTerm):
    """The teacher's k likeliest tokens where predictions are made. The output is the mean of the policy's
    log-probs of them by the teacher's probabilities, sum_v p_T(v) ln p(v), with the gradient
    p_T(v) [v is one of them] - M p(v) in the tempered logits, M the sum of these p_T."""

    tokens: Tensor
    """[K, k] int64 ids; on a tensor rank columns of its own. Those of no share may be any."""
    shares: Tensor
    """[K, k] float32, their probabilities; 0 of a token that the policy never samples, or that is not this
    rank's."""
    logprobs: Tensor
    """[K, k] float32, the teacher's; -inf of a token that the policy never samples."""
    repeats: ClassVar = True

    def of_rows(self, own: Tensor, num_rows: int) -> "TopTokens":
        return TopTokens(self.tokens[own], self.shares[own], self.logprobs[own])

    def of_columns(self, first: int, count: int) -> "TopTokens":
        columns = self.tokens - first
        is_own = (columns >= 0) & (columns < count)
        shares = torch.where(is_own, self.shares, 0.0)
        return TopTokens(columns.clamp(0, count - 1), shares, self.logprobs)

    def to(self, device: torch.device) -> "TopTokens":
        return TopTokens(*(on_gpu(each, device) for each in (self.tokens, self.shares, self.logprobs)))

    def masses(self) -> Tensor:
        """[K] probability of all k, on every rank."""
        return self.logprobs.exp().sum(-1)

    def places(self, part: slice) -> tuple[Tensor, Tensor]:
        columns = self.tokens[part]
        rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
        return rows.flatten(), columns.flatten()

    def value(self, logs: Tensor, part: slice, reduce: Reduce) -> Tensor:
        shares = self.shares[part]
        return reduce((shares * logs.view_as(shares)).sum(-1))

    def slopes(self, logs: Tensor, part: slice, values: Tensor, gradients: Tensor) -> Tensor:
        return (self.shares[part] * gradients[part, None]).flatten()

    def over_all(self, gradients: Tensor) -> Tensor:
        return gradients * self.masses()


def unpack_top_tokens(rows: Sequence[bytes]) -> TopTokens:
    """[K] packed ones (asyncrl/model/column_bytes.py)."""
    ids, found = unpack_top(b"".join(rows), len(rows))
    logprobs = torch.tensor(found)
    # The policy may not have a token that it never samples: any column will do.
    tokens = torch.from_numpy(np.where(np.isfinite(found), ids, 0).astype(np.int64))
    return TopTokens(tokens, logprobs.exp(), logprobs)
