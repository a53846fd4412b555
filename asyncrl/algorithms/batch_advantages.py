"""Advantages that need the whole batch: marked, divided by its std, or whitened.

A pure function of the batch in plain floats, so that a batch that is trained again gets the same advantages.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from asyncrl.algorithms.advantages import STD_EPSILON, is_flat
from asyncrl.recipe.algorithm_terms import WHITENED_ADVANTAGES
from asyncrl.recipe.sections.algorithm import Algorithm
from asyncrl.records import Batch, Finish, PolicyVersion, ScoredSequence, root_id


def finish_batch(batch: Batch, algorithm: Algorithm, *, mask_staleness: int | None = None) -> Batch:
    """The batch with its advantages normalized over all of it, where the recipe asks for it, and with those
    responses marked that its loss leaves out.

    Over the tokens that the loss counts, also those that a rejection takes out of it, which may look at the
    advantages itself. All are 0 where they are as good as equal (`is_flat`). With KL in the reward whitening
    is left to the trainer, which takes the KL off first.
    """
    if algorithm.masks_cut_off:
        batch = mask_cut_off(batch)
    is_whitened = algorithm.advantage.name in WHITENED_ADVANTAGES and not algorithm.has_kl_reward()
    is_centered = algorithm.advantage.name == "batch_mean"
    if not (algorithm.divides_by_batch_std or is_whitened or is_centered):
        return batch
    # Looks at every token: only where it is asked for.
    counts = [_num_counted(sequence, batch.taken_version, mask_staleness) for sequence in batch.sequences]
    if is_centered:
        batch = _centered(batch, counts, algorithm)
    if is_whitened:
        return _whitened(batch, counts, algorithm)
    return batch_std(batch, counts, algorithm) if algorithm.divides_by_batch_std else batch


def mask_cut_off(batch: Batch) -> Batch:
    """no loss of a response that was cut off, in numerator and denominator; its reward stays in the baseline

    Source: overlong filtering, DAPO, Yu et al. 2025 (arXiv 2503.14476, section 3.4); TRL's
    mask_truncated_completions, NeMo-RL's overlong_filtering. Its tokens leave the denominator too, as there:
    a mean is over the tokens that teach, however many were cut off. Under dr_grpo_constant it stays one of
    the sequences.
    Use: limits that cut off what might have become right, early in training or in long thoughts.
    Fails: nothing teaches brevity any longer, and responses may grow into the limit; watch the metric
    masked_cut_off_share, or take overlong instead.
    """
    sequences = [
        dataclasses.replace(sequence, is_masked=sequence.finish == Finish.LENGTH)
        for sequence in batch.sequences
    ]
    return dataclasses.replace(batch, sequences=sequences)


def batch_std(batch: Batch, counts: Sequence[Sequence[int]], algorithm: Algorithm) -> Batch:
    """A / (std A + 1e-6), the std over the responses of the batch (n); no mean is subtracted

    Source: ScaleRL, Khatri et al. 2025 (arXiv 2510.13786): r - mean r of the group, over the std of all
    generations of the batch. A response that has no token in the loss is not counted; one with advantages
    per turn counts once, by its tokens. AReaL's std_level batch is over tokens, TRL's scale_rewards batch
    is the std of rewards.
    Use: with dr_grpo or rloo: one scale for all tasks, and groups without a signal stay at zero, unlike under
    reinforce_pp_baseline.
    Fails: where few groups have a signal, the std is small and theirs are large: drop groups without one.
    """
    moments = _moments(_by_response(batch, counts), algorithm)
    return _with_advantages(batch, (lambda x: x / (moments[1] + STD_EPSILON)) if moments else None)


def _centered(batch: Batch, counts: Sequence[Sequence[int]], algorithm: Algorithm) -> Batch:
    """A - mean A, the mean over the responses that have a token in the loss."""
    moments = _moments(_by_response(batch, counts), algorithm)
    return _with_advantages(batch, (lambda x: x - moments[0]) if moments else None)


def _by_response(batch: Batch, counts: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """(weight, advantage) of runs of tokens: each response that counts has the same weight in all."""
    responses: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for sequence, own in zip(batch.sequences, counts, strict=True):
        values = (advantage for _, advantage in sequence.advantage_runs())
        responses[root_id(sequence.sequence_id)] += zip(own, values, strict=True)
    kept = [runs for runs in responses.values() if any(count for count, _ in runs)]
    return [
        (count / sum(each for each, _ in runs) / len(kept), value) for runs in kept for count, value in runs
    ]


def _whitened(batch: Batch, counts: Sequence[Sequence[int]], algorithm: Algorithm) -> Batch:
    """(A - mean A) / (std A + 1e-6) over the tokens that count."""
    total = sum(map(sum, counts))
    if not total:
        return batch
    weighted = [
        (count / total, value)
        for sequence, own in zip(batch.sequences, counts, strict=True)
        for count, (_, value) in zip(own, sequence.advantage_runs(), strict=True)
    ]
    moments = _moments(weighted, algorithm)
    return _with_advantages(
        batch, (lambda x: (x - moments[0]) / (moments[1] + STD_EPSILON)) if moments else None
    )


def _moments(weighted: Sequence[tuple[float, float]], algorithm: Algorithm) -> tuple[float, float] | None:
    """Mean and std of values by weights that sum to 1; None where there are none, or all are as good as
    equal."""
    values = [value for weight, value in weighted if weight]
    if not values or is_flat(values, algorithm):
        return None
    mean = math.fsum(weight * value for weight, value in weighted)
    return mean, math.sqrt(math.fsum(weight * (value - mean) ** 2 for weight, value in weighted))


def _with_advantages(batch: Batch, change: Callable[[float], float] | None) -> Batch:
    """The batch with each advantage changed; all 0 without a change."""
    change = change or (lambda advantage: 0.0)
    sequences = [
        dataclasses.replace(
            sequence,
            advantage=change(sequence.advantage),
            turn_advantages=[(count, change(advantage)) for count, advantage in sequence.turn_advantages],
        )
        for sequence in batch.sequences
    ]
    return dataclasses.replace(batch, sequences=sequences)


def _num_counted(sequence: ScoredSequence, version: PolicyVersion, mask_staleness: int | None) -> list[int]:
    """Tokens of each run of equal advantages with a log-prob that is a number, and not staler than that when
    `version` takes them; none of a sequence that is masked."""
    if sequence.is_masked:
        return [0] * len(sequence.advantage_runs())
    are_counted = np.isfinite(np.asarray(sequence.behavior_logprobs, np.float32))
    if mask_staleness is not None:
        are_counted &= np.asarray(sequence.token_versions, np.int64) >= version - mask_staleness
    counts, first = [], 0
    for length, _ in sequence.advantage_runs():
        counts.append(int(are_counted[first : first + length].sum()))
        first += length
    return counts
