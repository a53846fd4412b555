"""The columns of sequences (`ScoredSequence.columns`) in micro-batches: the seam of features with values for
tokens. A step part says which columns it reads and of which kind each is; the core packs them by their kind
and reads no value.

Shapes: P packed tokens, T sampled response tokens, K distinct predictions of them, E places in the logits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.prefix_tree import PackedTree

Reduce = Callable[..., Tensor]
"""(tensor, operation, by default a sum) -> the same of all ranks that share the vocabulary."""


class TokenColumn:
    """Numbers of sampled tokens, float32 and little-endian: a tensor of the micro-batch (`columns`)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def packed(self, sequences: Sequence[ScoredSequence]) -> Tensor:
        """[T] float32; 0 where a sequence has none."""
        parts = [
            np.frombuffer(own, "<f4")
            if (own := each.columns.get(self.name))
            else np.zeros(each.num_sampled())
            for each in sequences
        ]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32))


class InputColumn(ABC):
    """Values of positions, for the layers (`PackedSequences.columns`). Tokens are packed as one only where
    theirs are equal too."""

    name: ClassVar[str]

    @abstractmethod
    def rows(self, sequence: ScoredSequence, count: int | None = None) -> list[bytes]:
        """The value of each position but the last, or of the first `count`; empty without the column."""

    @abstractmethod
    def packed(self, sequences: Sequence[ScoredSequence], tree: PackedTree, num_predicted: Tensor) -> Any:
        """Those of P packed tokens, which predict `num_predicted` [P] response tokens each; all that are not
        padding are in `tree`."""


class PredictionColumn(ABC):
    """Values of predictions, for the output layer (`MicroBatch.terms`). Predictions are computed as one only
    where theirs are equal too."""

    name: ClassVar[str]

    @abstractmethod
    def values(self, sequence: ScoredSequence) -> list[bytes]:
        """[T] of one sequence."""

    @abstractmethod
    def term(self, values: Sequence[bytes], targets: np.ndarray) -> "PredictionTerm":
        """[K] values, [K] tokens that were sampled there."""


class PredictionTerm(Protocol):
    """Places in the logits of K predictions, and the output that they add: [K], of the log-probs there."""

    restricts: ClassVar[bool] = False
    """Whether its output is the log of the probability of the tokens that were sampled from: less it, a
    log-prob is that of the distribution over these."""
    repeats: ClassVar[bool] = False
    """Whether ranks that share the vocabulary may have one place more than once, of no weight."""

    def of_rows(self, own: Tensor, num_rows: int) -> Self:
        """Those of the rows `own` [k], ascending, of `num_rows`; numbered as in `own`."""

    def of_columns(self, first: int, count: int) -> Self:
        """Those of `count` ids from `first`, numbered from there: a tensor rank's part of the vocabulary."""

    def to(self, device: torch.device) -> Self:
        """The same on a GPU."""

    def places(self, part: slice) -> tuple[Tensor, Tensor]:
        """([E] rows from 0, ascending, [E] columns) of the neighbouring predictions `part`."""

    def value(self, logs: Tensor, part: slice, reduce: Reduce) -> Tensor:
        """The output of the predictions `part` from the log-probs [E] at their places, by autograd or out of
        it."""

    def slopes(self, logs: Tensor, part: slice, values: Tensor, gradients: Tensor) -> Tensor:
        """[E] gradients of the log-probs at the places of `part` from those of all K outputs, whose `values`
        are known."""

    def over_all(self, gradients: Tensor) -> Tensor:
        """[K] sums of the gradients of log-probs: what each token's share of is subtracted."""


Column = TokenColumn | InputColumn | PredictionColumn
ReadColumns = Mapping[str, Column]
"""Name -> kind, of the columns that the loss or a step part reads."""


def present(sequences: Sequence[ScoredSequence], columns: ReadColumns) -> list[Column]:
    """Those that a sequence has."""
    return [each for name, each in columns.items() if any(name in one.columns for one in sequences)]


def input_symbols(sequences: Sequence[ScoredSequence], columns: Sequence[Column]) -> list[np.ndarray] | None:
    """Numbers for the tokens of each sequence, equal for equal tokens with equal values; None where no column
    is of inputs. Those of a token without values are its own, below 0."""
    kinds = [each for each in columns if isinstance(each, InputColumn)]
    if not kinds:
        return None
    numbers: dict[tuple[Any, ...], int] = {}
    found = []
    for sequence in sequences:
        tokens = [*sequence.prompt_tokens, *sequence.response_tokens]
        symbols = [-1 - token for token in tokens]
        rows = [own for kind in kinds if (own := kind.rows(sequence))]
        for i, key in enumerate(zip(tokens, *rows, strict=False) if rows else ()):
            symbols[i] = numbers.setdefault(key, len(numbers))
        found.append(np.array(symbols, np.int64))
    return found


def prompt_values(sequence: ScoredSequence, columns: Sequence[Column]) -> tuple[bytes, ...]:
    """The values of its prompt's positions but the last, which the response's first token has."""
    size = len(sequence.prompt_tokens) - 1
    return tuple(b"".join(each.rows(sequence, size)) for each in columns if isinstance(each, InputColumn))


def told_apart(copies: np.ndarray, values: Sequence[list[bytes]]) -> tuple[np.ndarray, np.ndarray]:
    """(distinct, copies) as `PackedTree` has them, with predictions told apart whose values differ: [T] of
    each column."""
    numbers: dict[tuple[Any, ...], int] = {}
    keys = zip(copies.tolist(), *values, strict=True)
    found = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(copies))
    first = np.empty(len(numbers), np.int64)
    first[found[::-1]] = np.arange(len(found))[::-1]
    return first, found


def on_gpu(tensor: Tensor, device: torch.device) -> Tensor:
    """From page-locked memory: the host would wait for the GPU to come to the copy from any other."""
    return tensor.pin_memory().to(device, non_blocking=True)
