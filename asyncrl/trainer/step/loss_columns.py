"""Columns that terms of the loss need, of what they ask of all ranks' batch of an optimizer step."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from asyncrl.records import Batch, PolicyVersion, ScoredSequence, root_id
from asyncrl.trainer.packing.batch import by_trajectory, group_of

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
