"""Sets of tokens at the predictions of a micro-batch, as tensors: the kept ones, over which a prediction is
renormalized, and a teacher's likeliest ones, over which its forward KL is taken.

Shapes: T response tokens, K distinct predictions, E kept ids of all of them, k likeliest tokens at each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncrl.model.top_tokens import unpack_top


@dataclass(frozen=True, slots=True)
class KeptSets:
    """The ids that servers kept, of predictions in order."""

    rows: Tensor
    """[E] int64 into K, ascending."""
    tokens: Tensor
    """[E] int64 ids."""
    starts: np.ndarray
    """[K + 1] int64, where the ids of each row begin, and E: on the host, which would wait for a GPU's."""

    @classmethod
    def of(cls, rows: Tensor, tokens: Tensor, num_rows: int) -> "KeptSets":
        return cls(rows, tokens, np.searchsorted(rows.cpu().numpy(), np.arange(num_rows + 1)))

    def of_rows(self, own: Tensor, num_rows: int) -> "KeptSets":
        """Those of the rows `own` [k], ascending, of `num_rows`; numbered as in `own`."""
        places = torch.full((num_rows,), -1, dtype=torch.int64, device=own.device)
        places[own] = torch.arange(len(own), device=own.device)
        rows = places[self.rows]
        return KeptSets.of(rows[rows >= 0], self.tokens[rows >= 0], len(own))

    def of_columns(self, first: int, count: int) -> "KeptSets":
        """Those of `count` ids from `first`, numbered from there: a tensor rank's part of the vocabulary."""
        is_own = (self.tokens >= first) & (self.tokens < first + count)
        return KeptSets.of(self.rows[is_own], self.tokens[is_own] - first, len(self.starts) - 1)

    def of_slice(self, part: slice) -> "KeptSets":
        """Those of neighbouring rows, numbered from 0."""
        starts = self.starts[part.start : part.stop + 1]
        first, last = int(starts[0]), int(starts[-1])
        return KeptSets(self.rows[first:last] - part.start, self.tokens[first:last], starts - first)


def told_apart(copies: np.ndarray, told: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    """(distinct, copies, what is told of each prediction): as `PackedTree` has the first two, with
    predictions told apart of which something else is `told`, [T]: their kept sets, or what a teacher finds
    likeliest."""
    assert len(told) == len(copies), f"what is told of {len(told)} of {len(copies)} sampled tokens"
    numbers: dict[tuple[int, bytes], int] = {}
    found = np.fromiter(
        (
            numbers.setdefault((copy, each), len(numbers))
            for copy, each in zip(copies.tolist(), told, strict=True)
        ),
        np.int64,
        len(copies),
    )
    first = np.empty(len(numbers), np.int64)
    first[found[::-1]] = np.arange(len(found))[::-1]
    return first, found, [each for _, each in numbers]


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
