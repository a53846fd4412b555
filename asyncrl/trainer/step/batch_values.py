"""Values that need the whole batch: sums over all ranks, whitened advantages, columns of the loss.

Lists are [part of the batch][micro-batch] of [T] tensors; those of values are empty on all pipeline stages
but the last, which compute no loss. Sums leave out the tokens that no loss counts: those that are too stale,
of a response that is masked, or without a finite behavior log-prob. Tokens that a rejection removes from the
loss stay in: a rejection may look at the advantages, so the batch's mean must not depend on it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from asyncrl.algorithms.advantages import STD_EPSILON, is_flat
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, PolicyVersion, ScoredSequence, root_id
from asyncrl.trainer.network.model import device
from asyncrl.trainer.packing.batch import MicroBatch, by_trajectory, group_of


def sum_over_ranks(own: list[Tensor], size: int) -> Tensor:
    """[size] float64 on every rank: the sum of all ranks' `own`, each sequence counted once.

    `own` is empty on all pipeline stages but the last, which compute no loss.
    """
    return _over_ranks(own, size, dist.ReduceOp.SUM)


def max_over_ranks(own: list[Tensor], size: int) -> Tensor:
    """[size] float64 on every rank: the largest of all ranks' `own`, and 0."""
    return _over_ranks(own, size, dist.ReduceOp.MAX)


def _over_ranks(own: list[Tensor], size: int, operation: dist.ReduceOp.RedOpType) -> Tensor:
    total = torch.zeros(size, dtype=torch.float64, device=device())
    # Ranks that share the sequences all know their values: only the first of them adds them.
    adds = parallel_state.get_context_parallel_rank() == parallel_state.get_tensor_model_parallel_rank() == 0
    if own and adds:
        stacked = torch.stack(own)
        total = stacked.sum(0) if operation is dist.ReduceOp.SUM else stacked.amax(0)
    if dist.get_world_size() > 1:
        dist.all_reduce(total, op=operation)
    return total


Parts = list[list[MicroBatch]]


def with_advantages(parts: Parts, advantages: list[list[Tensor]]) -> Parts:
    """The parts with these advantages; unchanged where there are none."""
    return [
        [replace(micro, advantages=a) for micro, a in zip(part, each, strict=True)] if each else part
        for part, each in zip(parts, advantages, strict=True)
    ]


def whitened(
    advantages: list[list[Tensor]], parts: Parts, algorithm: Algorithm, *, mask_staleness: int | None
) -> list[list[Tensor]]:
    """(A - mean) / (std + 1e-6), over all tokens that count of all parts and ranks; 0 where these are as good
    as equal (`advantages.is_flat`)."""
    own = []
    for found, micro_batches in zip(advantages, parts, strict=True):
        for each, micro in zip(found, micro_batches, strict=True) if found else ():
            counted = each[micro.counted(mask_staleness).to(each.device)].double()
            own.append(torch.stack([counted.new_tensor(len(counted)), counted.sum(), counted.square().sum()]))
    count, total, squares = sum_over_ranks(own, 3).tolist()
    if not count:
        return advantages
    mean = total / count
    std = math.sqrt(max(0.0, squares / count - mean**2))
    if is_flat(_range(advantages, parts, mean, mask_staleness=mask_staleness), algorithm):
        return [[torch.zeros_like(a) for a in found] for found in advantages]
    return [[((a.double() - mean) / (std + STD_EPSILON)).float() for a in found] for found in advantages]


def _range(
    advantages: list[list[Tensor]], parts: Parts, mean: float, *, mask_staleness: int | None
) -> tuple[float, float]:
    """The lowest and the highest, over the tokens that count of all ranks; `mean` is between them."""
    own = []
    for found, micro_batches in zip(advantages, parts, strict=True):
        for each, micro in zip(found, micro_batches, strict=True) if found else ():
            counted = each[micro.counted(mask_staleness).to(each.device)].double() - mean
            # The largest over the ranks is at least 0, as are the farthest above and below the mean.
            ends = torch.cat([counted, counted.new_zeros(1)])
            own.append(torch.stack([-ends.min(), ends.max()]))
    below, above = max_over_ranks(own, 2).tolist()
    return mean - below, mean + above


PROMPT_LENGTHS = "prompt_lengths"
"""Name of the column of `prompt_lengths`, the one of each token's prompt."""
IMITATED = "imitated"
"""Name of the column of `imitation_weight`, 0 at the tokens of other responses."""


def with_prompt_lengths(batch: Batch, *, mask_staleness: int | None) -> Batch:
    lengths = prompt_lengths(batch, mask_staleness=mask_staleness)
    return _with_column(batch, PROMPT_LENGTHS, [lengths[root_id(one.sequence_id)] for one in batch.sequences])


def with_imitation(batch: Batch, *, mask_staleness: int | None) -> Batch:
    """Without the column where nothing is imitated."""
    weight = imitation_weight(batch, mask_staleness=mask_staleness)
    values = [weight * one.is_correct() for one in batch.sequences]
    return _with_column(batch, IMITATED, values) if weight else batch


def imitation_weight(batch: Batch, *, mask_staleness: int | None) -> float:
    """Tokens that count over those of correct responses; 0 where no correct one has any."""
    counts = [_num_counted(each, batch.taken_version, mask_staleness) for each in batch.sequences]
    correct = sum(n for n, each in zip(counts, batch.sequences, strict=True) if each.is_correct())
    return sum(counts) / correct if correct else 0.0


def prompt_lengths(batch: Batch, *, mask_staleness: int | None) -> dict[str, int]:
    """Trajectory -> the tokens that count (`MicroBatch.counted`) of all trajectories of its group, its own
    and others'; at least 1."""
    groups: dict[str, str] = {}
    counts: dict[str, int] = defaultdict(int)
    for lines in by_trajectory(batch.sequences):
        group = groups[root_id(lines[0].sequence_id)] = group_of(lines)
        counts[group] += sum(_num_counted(line, batch.taken_version, mask_staleness) for line in lines)
    return {name: max(1, counts[group]) for name, group in groups.items()}


def _num_counted(sequence: ScoredSequence, version: PolicyVersion, mask_staleness: int | None) -> int:
    if sequence.is_masked:
        return 0
    is_counted = np.isfinite(np.asarray(sequence.behavior_logprobs, np.float32))
    if mask_staleness is not None:
        is_counted &= version - np.asarray(sequence.token_versions, np.int64) <= mask_staleness
    return int(is_counted.sum())


def _with_column(batch: Batch, name: str, values: Sequence[float]) -> Batch:
    """One value for all tokens of each sequence."""
    sequences = [
        replace(one, columns={**one.columns, name: np.full(one.num_sampled(), value, "<f4").tobytes()})
        for one, value in zip(batch.sequences, values, strict=True)
    ]
    return replace(batch, sequences=sequences)
