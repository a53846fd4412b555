"""Advantages per token, known before the first step on a batch: put into micro-batches, and whitened over the
whole batch.

Lists are [part of the batch][micro-batch] of [T] tensors; those of values are empty on all pipeline stages
but the last, which compute no loss. Sums leave out the tokens that no loss counts: those that are too stale,
of a response that is masked, or without a finite behavior log-prob. Tokens that a rejection removes from the
loss stay in: a rejection may look at the advantages, so the batch's mean must not depend on it.
"""

import dataclasses
import math

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import STD_EPSILON, is_flat
from asyncrl.recipe import Algorithm
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.step.totals import max_over_ranks, sum_over_ranks

Parts = list[list[MicroBatch]]


def with_advantages(parts: Parts, advantages: list[list[Tensor]]) -> Parts:
    """The parts with these advantages; unchanged where there are none."""
    return [
        [dataclasses.replace(micro, advantages=a) for micro, a in zip(part, each, strict=True)]
        if each
        else part
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
