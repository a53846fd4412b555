"""From a batch of sequences to packed micro-batches: which sequence goes where, and the tensors.

Every rank computes the same plan from the same batch and packs its own share. The prompt that the sequences
of a group share is packed, and so computed, once per micro-batch. Nothing is truncated: what is longer than
the token budget gets a micro-batch of its own. The last response token is a target, never an input.

Shapes: P packed tokens, T response tokens, N sequences of one micro-batch.
"""

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from itertools import chain, groupby, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from asyncrl.model.flops import pass_flops
from asyncrl.model.folder import ModelShape
from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.records import Batch, PolicyVersion, Sequence
from asyncrl.trainer.attention import PackedSequences, describe_pack
from asyncrl.trainer.attention_kernels import Rows


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward-backward."""

    tokens: Tensor
    """[P] int64: each distinct prompt, followed by the responses to it."""
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
    are_continued: Tensor
    """[T] bool, sampled over keys and values of an older version."""
    sequence_ids: Tensor
    """[T] int64, 0 to N - 1."""
    names: tuple[str, ...] = ()
    """[N] `Sequence.sequence_id`."""

    def counted(self, mask_staleness: int | None) -> Tensor:
        """[T] bool, tokens that the losses count: their log-prob is a number, and they are not staler."""
        is_finite = self.behavior.isfinite()
        return is_finite if mask_staleness is None else is_finite & (self.lags <= mask_staleness)

    def flops(self, shape: ModelShape) -> float:
        """Floating-point operations of one forward and backward through a model of `shape`."""
        return pass_flops(
            shape,
            num_tokens=len(self.tokens),
            num_targets=len(self.targets),
            num_looks=float((self.sequences.positions + 1).sum()),
        )

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on `device`; itself on a CPU."""
        return self if device.type == "cpu" else _moved(self, device)


RecordOf = TypeVar("RecordOf", MicroBatch, PackedSequences, Rows)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Sequences that share a prompt and a micro-batch."""

    indices: tuple[int, ...]
    num_tokens: int
    """Packed tokens: the prompt once, and every response but its last token."""


def mini_batches(batch: Batch, count: int, *, seed: int) -> list[Batch]:
    """`count` parts of a batch with nearly equal numbers of sequences; fewer for fewer sequences.

    Neighbours with the same prompt stay neighbours, in an order that depends on `seed` and the step alone: no
    part always gets what was generated last, or the repeated groups. One part keeps the batch's order.
    """
    sequences, size = batch.sequences, len(batch.sequences)
    count = max(1, min(count, size))
    if count > 1:
        groups = [list(group) for _, group in groupby(sequences, key=lambda sequence: sequence.prompt_tokens)]
        random.Random(f"{seed}:{batch.step}").shuffle(groups)
        sequences = list(chain.from_iterable(groups))
    ends = [size * part // count for part in range(count + 1)]
    return [replace(batch, sequences=sequences[a:b]) for a, b in pairwise(ends)]


def rank_micro_batches(
    batch: Batch,
    *,
    budget_tokens: int,
    rank: int,
    num_ranks: int,
    layout: Layout = ONE_PROCESS,
    kernel: str = "sdpa",
) -> list[MicroBatch]:
    """The micro-batches of the data-parallel `rank`; all ranks that share its model compute the same.

    `kernel` is the one of attention for which sequences are laid out.
    """
    plan = plan_micro_batches(
        batch.sequences,
        budget_tokens=budget_tokens,
        num_ranks=num_ranks,
        multiple=layout.micro_batch_multiple(),
    )
    return [
        make_micro_batch(
            [batch.sequences[i] for i in chosen],
            batch.step,
            token_multiple=layout.token_multiple(),
            kernel=kernel,
        )
        for chosen in plan[rank]
    ]


def plan_micro_batches(
    sequences: list[Sequence], *, budget_tokens: int, num_ranks: int, multiple: int = 1
) -> list[list[list[int]]]:
    """[rank][micro-batch] -> indices of sequences; every rank gets the same number, a multiple of `multiple`.

    The largest bundle goes into the emptiest micro-batch, one more per rank until all fit. Micro-batches are
    empty where there are fewer bundles than micro-batches.
    """
    bundles = make_bundles(sequences, max_tokens=budget_tokens)
    needed = sum(bundle.num_tokens for bundle in bundles) / budget_tokens
    per_rank = max(1, int(np.ceil(needed / num_ranks / multiple))) * multiple
    while (plan := _fill(bundles, budget_tokens, per_rank * num_ranks)) is None:
        per_rank += multiple
    return [plan[rank::num_ranks] for rank in range(num_ranks)]


def make_bundles(sequences: list[Sequence], *, max_tokens: int) -> list[Bundle]:
    """Groups sequences by prompt, largest bundle first, split where one would not fit into `max_tokens`."""
    by_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, sequence in enumerate(sequences):
        by_prompt[tuple(sequence.prompt_tokens)].append(i)
    bundles = []
    for prompt, indices in by_prompt.items():
        chosen: list[int] = []
        load = len(prompt)
        for i in indices:
            extra = max(len(sequences[i].response_tokens) - 1, 0)
            if chosen and load + extra > max_tokens:
                bundles.append(Bundle(tuple(chosen), load))
                chosen, load = [], len(prompt)
            chosen.append(i)
            load += extra
        bundles.append(Bundle(tuple(chosen), load))
    return sorted(bundles, key=lambda bundle: (-bundle.num_tokens, bundle.indices))


def make_micro_batch(
    sequences: list[Sequence], version: PolicyVersion, *, token_multiple: int = 1, kernel: str = "sdpa"
) -> MicroBatch:
    """Packs `sequences`, neighbours with the same prompt together; none make a pack without targets."""
    sequences = sequences or [Sequence("", [0], [], [], [], [], 0.0, 0.0)]
    parts, positions, rows, predicting = _lay_out(sequences)
    if num_missing := -len(positions) % token_multiple:
        # A sequence of its own that predicts nothing, so that no other sees it.
        parts.append([0] * num_missing)
        rows.append(np.arange(len(positions), len(positions) + num_missing))
        positions = np.concatenate([positions, np.arange(num_missing)])
    num_responses = np.fromiter((len(s.response_tokens) for s in sequences), np.int64, len(sequences))
    num_targets = int(num_responses.sum())
    sequence_ids = np.repeat(np.arange(len(sequences)), num_responses)
    advantages = np.fromiter((s.advantage for s in sequences), np.float32, len(sequences))
    versions = _flatten([s.token_versions for s in sequences], np.int64, num_targets)
    return MicroBatch(
        tokens=torch.from_numpy(_flatten(parts, np.int64, len(positions))),
        sequences=describe_pack(rows, positions, kernel=kernel),
        predicting=torch.from_numpy(predicting),
        targets=torch.from_numpy(_flatten([s.response_tokens for s in sequences], np.int64, num_targets)),
        behavior=torch.from_numpy(
            _flatten([s.behavior_logprobs for s in sequences], np.float32, num_targets)
        ),
        advantages=torch.from_numpy(advantages[sequence_ids]),
        lags=torch.from_numpy(version - versions),
        are_continued=torch.from_numpy(_flatten([s.are_continued for s in sequences], np.bool_, num_targets)),
        sequence_ids=torch.from_numpy(sequence_ids),
        names=tuple(sequence.sequence_id for sequence in sequences),
    )


def _lay_out(
    sequences: list[Sequence],
) -> tuple[list[list[int]], np.ndarray, list[np.ndarray], np.ndarray]:
    """(token runs, position of each packed token, packed tokens of each sequence, predicting tokens)."""
    parts, positions, rows, predicting = [], [], [], []
    end, last_prompt, prompt_places = 0, None, np.empty(0, np.int64)
    for sequence in sequences:
        prompt, inputs = sequence.prompt_tokens, sequence.response_tokens[:-1]
        assert prompt, "a response needs a prompt token before it"
        if prompt != last_prompt:
            parts.append(prompt)
            positions.append(np.arange(len(prompt)))
            prompt_places = np.arange(end, end + len(prompt))
            end, last_prompt = end + len(prompt), prompt
        parts.append(inputs)
        positions.append(np.arange(len(prompt), len(prompt) + len(inputs)))
        rows.append(np.concatenate([prompt_places, np.arange(end, end + len(inputs))]))
        if sequence.response_tokens:
            predicting.append(rows[-1][len(prompt) - 1 :])
        end += len(inputs)
    empty = [np.empty(0, np.int64)]
    return parts, np.concatenate(positions), rows, np.concatenate(predicting or empty)


def _fill(bundles: list[Bundle], budget_tokens: int, num_bins: int) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest = [(0, i) for i in range(num_bins)]
    for bundle in bundles:
        load, i = emptiest[0]
        if load and load + bundle.num_tokens > budget_tokens:
            return None
        heapq.heapreplace(emptiest, (load + bundle.num_tokens, i))
        bins[i].extend(bundle.indices)
    return bins


def _flatten(parts: list[list[Any]], dtype: type, count: int) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), dtype, count)


def _moved(record: RecordOf, device: torch.device) -> RecordOf:
    """A copy whose tensors are on `device`."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    moved: dict[str, Any] = {
        name: value.to(device, non_blocking=True) if torch.is_tensor(value) else _moved(value, device)
        for name, value in values.items()
        if torch.is_tensor(value) or isinstance(value, PackedSequences | Rows)
    }
    return replace(record, **moved)
