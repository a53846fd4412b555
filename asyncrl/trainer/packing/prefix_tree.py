"""Packs sequences as a tree: tokens with the same tokens before them are one, computed once.

Causal layers give such tokens the same hidden states, so nothing changes but the work; their gradients add
up. Members of a group share their prompt, prompts share a template or a system prompt, and short responses
share their first tokens or are equal. The last response token is a target, never an input; observed ones are
inputs, never targets. Symbols tell tokens apart that have other values of a column (`columns.InputColumn`).

Shapes: P packed tokens, T sampled response tokens of N sequences, K distinct predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncrl.records import ScoredSequence


@dataclass(frozen=True, slots=True)
class PackedTree:
    tokens: np.ndarray
    """[P] int64; a token comes after those before it in its sequences."""
    positions: np.ndarray
    """[P] int64, each token's place in its sequences."""
    rows: list[np.ndarray]
    """The packed tokens of each sequence whose inputs are not the beginning of another's."""
    predicting: np.ndarray
    """[T] int64, the packed token that predicts each response token, sequence after sequence."""
    distinct: np.ndarray
    """[K] int64 into T: one of the response tokens that have the same past and are equal."""
    copies: np.ndarray
    """[T] int64 into K: the prediction that each response token is."""
    sources: np.ndarray
    """[P] int64, a sequence that each packed token is of, at `positions`."""


def pack_tree(sequences: list[ScoredSequence], symbols: list[np.ndarray] | None = None) -> PackedTree:
    """Packs `sequences`, at least one, each with a prompt of at least one token; `symbols` as
    `columns.input_symbols`."""
    tree, added = _Tree(), {}
    for i in tree_order(sequences) if symbols is None else symbol_order(sequences, symbols):
        added[i] = tree.add(i, sequences[i], None if symbols is None else symbols[i])
    in_order = [added[i] for i in range(len(sequences))]
    predicting, copies = (np.concatenate(parts) for parts in zip(*in_order, strict=True))
    # The first of each kind: it is written last.
    distinct = np.empty(tree.num_distinct, np.int64)
    distinct[copies[::-1]] = np.arange(len(copies))[::-1]
    tokens, positions = np.concatenate(tree.tokens), np.concatenate(tree.positions)
    sources = np.concatenate(tree.sources)
    return PackedTree(tokens, positions, tree.rows, predicting, distinct, copies, sources)


def tree_order(sequences: list[ScoredSequence]) -> list[int]:
    """Indices in the order of the tokens: what two sequences share, all between them share too."""

    def tokens(i: int) -> tuple[bytes, bool]:
        prompt, response = sequences[i].prompt_tokens, sequences[i].response_tokens
        # Of equal tokens, those without a response are inputs to the last one.
        return sort_key(prompt) + sort_key(response), not response

    return sorted(range(len(sequences)), key=tokens)


def sort_key(tokens: Sequence[int]) -> bytes:
    """Compares as the list of them does."""
    return np.asarray(tokens, ">u4").tobytes()


def symbol_order(sequences: list[ScoredSequence], symbols: list[np.ndarray]) -> list[int]:
    """`tree_order` of tokens that symbols tell apart."""
    keys = [(own.tolist(), not each.response_tokens) for own, each in zip(symbols, sequences, strict=True)]
    return sorted(range(len(sequences)), key=keys.__getitem__)


class _Tree:
    """Grows by one sequence after the other, in their order."""

    def __init__(self) -> None:
        self.tokens: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []
        self.sources: list[np.ndarray] = []
        self.num_distinct = 0
        self._num_tokens = 0
        # Of the last sequence: its tokens or their symbols, their places in the pack, its predictions and its
        # targets' places among its tokens.
        nothing = np.empty(0, np.int64)
        self._last = (nothing, nothing, nothing, nothing)

    def add(
        self, number: int, sequence: ScoredSequence, symbols: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The part of `predicting` and of `copies` that sequence `number` has. `symbols` tell its tokens
        apart where they do not do so themselves."""
        num_prompt, num_response = len(sequence.prompt_tokens), len(sequence.response_tokens)
        assert num_prompt, "a response needs a prompt token before it"
        size = num_prompt + num_response
        parts = (sequence.prompt_tokens, sequence.response_tokens)
        tokens = np.concatenate([np.asarray(part, np.int64) for part in parts])
        of_last, last_row, last_copies, last_targets = self._last
        targets = num_prompt + _sampled_positions(sequence)
        symbols = tokens if symbols is None else symbols
        shared = num_common(of_last, symbols)
        row = self._add_row(number, tokens[: size - min(num_response, 1)], last_row, shared)
        # The same token may be a target here and none there: by a prompt of another length, or as observed.
        known = min(num_common(targets, last_targets), int(np.searchsorted(targets, shared)))
        copies = _extended(last_copies[:known], len(targets), self.num_distinct)
        self.num_distinct += len(targets) - known
        self._last = (symbols, row, copies, targets)
        return row[targets - 1], copies

    def _add_row(self, number: int, inputs: np.ndarray, last_row: np.ndarray, shared: int) -> np.ndarray:
        """The places of `inputs`, of which the first `shared` may be those of the last sequence."""
        known = min(shared, len(inputs), len(last_row))
        if known == len(inputs):
            return last_row if known == len(last_row) else last_row[:known]
        if self.rows and self.rows[-1] is last_row and known == len(last_row):
            self.rows.pop()
        row = _extended(last_row[:known], len(inputs), self._num_tokens)
        self.rows.append(row)
        self.tokens.append(inputs[known:])
        self.positions.append(np.arange(known, len(inputs)))
        self.sources.append(np.full(len(inputs) - known, number))
        self._num_tokens += len(inputs) - known
        return row


def _sampled_positions(sequence: ScoredSequence) -> np.ndarray:
    if not sequence.observed:
        return np.arange(len(sequence.response_tokens))
    return np.concatenate([np.arange(first, end) for first, end in sequence.sampled_spans()])


def _extended(known: np.ndarray, size: int, first: int) -> np.ndarray:
    """`known`, then numbers from `first`, `size` in all."""
    return np.concatenate([known, np.arange(first, first + size - len(known))])


def num_common(left: np.ndarray, right: np.ndarray) -> int:
    """How many first tokens both have."""
    size = min(len(left), len(right))
    differ = left[:size] != right[:size]
    return int(differ.argmax()) if differ.any() else size
