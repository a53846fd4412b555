"""From a batch of sequences to packed micro-batches: which sequence goes where, and the tensors.

Every rank computes the same plan from the same batch and packs its own share. Nothing is truncated: a
sequence longer than the token budget gets a micro-batch of its own. The last response token is a target only.

Shapes: P packed tokens, T response tokens, N sequences of one micro-batch.
"""

import heapq
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from asyncrl.trainer.attention import PackedSequences, pack_sequences
from asyncrl.types import Batch, PolicyVersion, Sequence


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward-backward."""

    tokens: Tensor
    """[P] int64, sequences one after the other, longest first."""
    sequences: PackedSequences
    predicting: Tensor
    """[T] int64, the packed position whose output predicts each response token."""
    targets: Tensor
    """[T] int64, the response tokens."""
    behavior: Tensor
    """[T] float32 log-probs as sampled; may hold non-finite values."""
    advantages: Tensor
    """[T] float32."""
    lags: Tensor
    """[T] int64, trainer version - version that sampled the token."""
    sequence_ids: Tensor
    """[T] int64, 0 to N - 1."""


def packed_length(sequence: Sequence) -> int:
    return len(sequence.prompt_tokens) + len(sequence.response_tokens) - 1


def plan_micro_batches(lengths: list[int], *, budget_tokens: int, num_ranks: int) -> list[list[list[int]]]:
    """[rank][micro-batch] -> indices of sequences, longest first; as many micro-batches on every rank.

    Longest first into the emptiest micro-batch, one more per rank until all fit. Micro-batches are empty
    where there are fewer sequences than micro-batches.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    needed = sum(max(length, 1) for length in lengths) / budget_tokens
    per_rank = max(1, int(np.ceil(needed / num_ranks)))
    while (bins := _fill(order, lengths, budget_tokens, per_rank * num_ranks)) is None:
        per_rank += 1
    return [bins[rank::num_ranks] for rank in range(num_ranks)]


def _fill(order: list[int], lengths: list[int], budget_tokens: int, num_bins: int) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest = [(0, i) for i in range(num_bins)]
    for index in order:
        load, i = emptiest[0]
        if load and load + lengths[index] > budget_tokens:
            return None
        heapq.heapreplace(emptiest, (load + lengths[index], i))
        bins[i].append(index)
    return bins


def make_micro_batch(sequences: list[Sequence], version: PolicyVersion) -> MicroBatch:
    """Packs `sequences`, which come longest first; none at all makes a pack of one token without targets."""
    if not sequences:
        sequences = [_FILLER]
    prompts = np.fromiter((len(s.prompt_tokens) for s in sequences), np.int64, len(sequences))
    responses = np.fromiter((len(s.response_tokens) for s in sequences), np.int64, len(sequences))
    assert prompts.min() > 0, "a response needs a prompt token before it"
    num_targets = int(responses.sum())
    inputs = chain.from_iterable((*s.prompt_tokens, *s.response_tokens[:-1]) for s in sequences)
    lengths = prompts + np.maximum(responses - 1, 0)
    sequence_ids = np.repeat(np.arange(len(sequences)), responses)
    # Response token j of a sequence is predicted at its start + prompt - 1 + j.
    firsts = np.cumsum(lengths) - lengths + prompts - 1 - (np.cumsum(responses) - responses)
    versions = _flatten((s.token_versions for s in sequences), np.int64, num_targets)
    advantages = np.fromiter((s.advantage for s in sequences), np.float32, len(sequences))
    return MicroBatch(
        tokens=torch.from_numpy(_flatten([inputs], np.int64, int(lengths.sum()))),
        sequences=pack_sequences(lengths),
        predicting=torch.from_numpy(firsts[sequence_ids] + np.arange(num_targets)),
        targets=torch.from_numpy(_flatten((s.response_tokens for s in sequences), np.int64, num_targets)),
        behavior=torch.from_numpy(
            _flatten((s.behavior_logprobs for s in sequences), np.float32, num_targets)
        ),
        advantages=torch.from_numpy(advantages[sequence_ids]),
        lags=torch.from_numpy(version - versions),
        sequence_ids=torch.from_numpy(sequence_ids),
    )


def rank_micro_batches(batch: Batch, *, budget_tokens: int, rank: int, num_ranks: int) -> list[MicroBatch]:
    """The micro-batches of this rank."""
    lengths = [packed_length(sequence) for sequence in batch.sequences]
    plan = plan_micro_batches(lengths, budget_tokens=budget_tokens, num_ranks=num_ranks)
    return [make_micro_batch([batch.sequences[i] for i in chosen], batch.step) for chosen in plan[rank]]


def _flatten(parts, dtype, count: int) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), dtype, count)


_FILLER = Sequence("", [0], [], [], [], 0.0, 0.0)
