"""Terms of predictions: kept sets, over which they are renormalized, and a teacher's likeliest tokens.

Shapes: T response tokens, K distinct predictions, E kept ids of all of them, k likeliest tokens at each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.model.column_bytes import KEPT_SETS, TEACHER_TOP, split_kept_sets, split_top, unpack_top
from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.columns import PredictionColumn, PredictionTerm, Reduce, on_gpu

_NOTHING = -1e30
"""Stands for the largest log-prob of no places. Unlike -inf, 0 times it is no NaN."""


class KeptColumn(PredictionColumn):
    name: ClassVar = KEPT_SETS

    def values(self, sequence: ScoredSequence) -> list[bytes]:
        return split_kept_sets(sequence.columns.get(KEPT_SETS, b""))

    def term(self, values: Sequence[bytes], targets: np.ndarray) -> "KeptSets":
        return unpack_kept_sets(values, targets)


@dataclass(frozen=True, slots=True)
class KeptSets(PredictionTerm):
    """The ids that servers kept, of predictions in order. Its output is the log of their probability."""

    rows: Tensor
    """[E] int64 into K, ascending."""
    tokens: Tensor
    """[E] int64 ids."""
    starts: np.ndarray
    """[K + 1] int64, where the ids of each row begin, and E: on the host, which would wait for a GPU's."""
    restricts: ClassVar = True

    @classmethod
    def of(cls, rows: Tensor, tokens: Tensor, num_rows: int) -> "KeptSets":
        return cls(rows, tokens, np.searchsorted(rows.cpu().numpy(), np.arange(num_rows + 1)))

    def of_rows(self, own: Tensor, num_rows: int) -> "KeptSets":
        places = torch.full((num_rows,), -1, dtype=torch.int64, device=own.device)
        places[own] = torch.arange(len(own), device=own.device)
        rows = places[self.rows]
        return KeptSets.of(rows[rows >= 0], self.tokens[rows >= 0], len(own))

    def of_columns(self, first: int, count: int) -> "KeptSets":
        is_own = (self.tokens >= first) & (self.tokens < first + count)
        return KeptSets.of(self.rows[is_own], self.tokens[is_own] - first, len(self.starts) - 1)

    def to(self, device: torch.device) -> "KeptSets":
        return KeptSets(on_gpu(self.rows, device), on_gpu(self.tokens, device), self.starts)

    def places(self, part: slice) -> tuple[Tensor, Tensor]:
        starts = self.starts[part.start : part.stop + 1]
        first, last = int(starts[0]), int(starts[-1])
        return self.rows[first:last] - part.start, self.tokens[first:last]

    def value(self, logs: Tensor, part: slice, reduce: Reduce) -> Tensor:
        rows, _ = self.places(part)
        largest = logs.new_full((part.stop - part.start,), _NOTHING)
        largest = largest.scatter_reduce(0, rows, logs.detach(), "amax")
        largest = reduce(largest, dist.ReduceOp.MAX)
        sums = torch.zeros_like(largest).index_add(0, rows, (logs - largest[rows]).exp())
        return reduce(sums).log() + largest

    def slopes(self, logs: Tensor, part: slice, values: Tensor, gradients: Tensor) -> Tensor:
        rows, _ = self.places(part)
        return (logs - values[part][rows]).exp() * gradients[part][rows]

    def over_all(self, gradients: Tensor) -> Tensor:
        return gradients


def unpack_kept_sets(sets: Sequence[bytes], targets: np.ndarray) -> KeptSets:
    """[K] packed sets, [K] the tokens that were sampled from them -> all ids, the sampled ones included."""
    values = _numbers(b"".join(sets))
    is_end = values == 0
    # An end adds nothing: ids run on within a set, from -1.
    sums, rows = np.cumsum(values), np.cumsum(is_end) - is_end
    before = np.concatenate([[0], sums[is_end]])
    ids = sums - before[rows] - 1
    ids[is_end] = targets
    return KeptSets.of(torch.from_numpy(rows), torch.from_numpy(ids), len(sets))


def _numbers(packed: bytes) -> np.ndarray:
    """The numbers of LEB128 bytes, [n] int64."""
    found = np.frombuffer(packed, np.uint8).astype(np.int64)
    is_last = found < 0x80
    starts = np.flatnonzero(np.concatenate([[True], is_last[:-1]])) if len(found) else np.empty(0, np.int64)
    places = np.arange(len(found)) - np.repeat(starts, np.diff(np.append(starts, len(found))))
    parts = (found & 0x7F) << (7 * places)
    return np.add.reduceat(parts, starts) if len(found) else parts


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
    """[K] likeliest tokens as `model.column_bytes` packs them."""
    ids, found = unpack_top(b"".join(rows), len(rows))
    logprobs = torch.tensor(found)
    # The policy may not have a token that it never samples: any column will do.
    tokens = torch.from_numpy(np.where(np.isfinite(found), ids, 0).astype(np.int64))
    return TopTokens(tokens, logprobs.exp(), logprobs)
