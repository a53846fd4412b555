"""A teacher's likeliest tokens of a micro-batch as tensors: what its forward KL is over.

Shapes: T response tokens, K distinct predictions, k tokens at each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.model.top_tokens import unpack_top


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The teacher's k likeliest tokens where predictions are made."""

    tokens: Tensor
    """[K, k] int64 ids, in a row all different."""
    logprobs: Tensor
    """[K, k] float32, the teacher's; -inf of a token that the policy never samples."""

    def of_rows(self, own: Tensor) -> "TopTokens":
        """Those of the rows `own`."""
        return TopTokens(self.tokens[own], self.logprobs[own])

    def masses(self) -> Tensor:
        """[K] probability of all k."""
        return self.logprobs.exp().sum(-1)

    def of_columns(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """([K, k] columns of `count` ids from `first`, [K, k] their probabilities): a tensor rank's part of
        the vocabulary. What is elsewhere has a column all the same, and probability 0."""
        columns = self.tokens - first
        is_own = (columns >= 0) & (columns < count)
        return columns.clamp(0, count - 1), torch.where(is_own, self.logprobs.exp(), 0.0)


def unpack_top_tokens(rows: Sequence[bytes]) -> TopTokens:
    """[K] packed ones (asyncrl/model/top_tokens.py)."""
    tokens, logprobs = unpack_top(b"".join(rows), len(rows))
    return TopTokens(torch.tensor(tokens, dtype=torch.int64), torch.tensor(logprobs))
