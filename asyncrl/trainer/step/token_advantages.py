"""Advantages per token that are known before the first step on a batch: KL in the reward, whitening over the
whole batch, and what a teacher adds.

Lists are [part of the batch][micro-batch] of [T] tensors; those of values are empty on all pipeline stages
but the last, which compute no loss. Sums leave out the tokens that no loss counts: those that are too stale,
of a response that is masked, or without a finite behavior log-prob. Tokens that a rejection removes from the
loss stay in: a rejection may look at the advantages, so the batch's mean must not depend on it.
"""

import dataclasses
import math
from collections import defaultdict

import torch
from torch import Tensor

from asyncrl.algorithms.advantages import STD_EPSILON, is_flat
from asyncrl.algorithms.distillation import teacher_advantages
from asyncrl.recipe import Algorithm
from asyncrl.trainer.network.model import device
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


def with_teacher(parts: Parts, coefficient: float) -> Parts:
    """Advantages plus those of the teacher, last of all: nothing is done to their scale or their mean."""
    return [
        [
            micro
            if micro.teacher is None
            else dataclasses.replace(
                micro,
                advantages=micro.advantages
                + teacher_advantages(micro.behavior, micro.teacher, coefficient).to(micro.advantages),
            )
            for micro in part
        ]
        for part in parts
    ]


def with_kl_reward(
    parts: Parts,
    penalties: list[list[Tensor]],
    algorithm: Algorithm,
    *,
    names: list[str],
    mask_staleness: int | None,
) -> Parts:
    """Advantages less the KL that a token and those after it run up, then whitened where the advantage is.

    A_t - sum_{s >= t} penalty_s: the return-to-go of a reward of -penalty per token, as in REINFORCE++ (Hu et
    al. 2025, arXiv 2501.03262), which whitens afterwards. Under rloo the others' penalties are in the
    baseline too, whose rewards hold them (Ahmadian et al. 2024, arXiv 2402.14740). Other baselines of a group
    stay those of its rewards, which changes no expected gradient. `names` are of the whole batch's sequences.
    """
    found = [
        [
            micro.advantages.to(each.device) - sum_from_here(each, micro.line_ids.to(each.device))
            for micro, each in (zip(part, own, strict=True) if own else ())
        ]
        for part, own in zip(parts, penalties, strict=True)
    ]
    if algorithm.advantage == "rloo":
        baselines = _penalties_of_the_others(parts, penalties, names)
        found = [
            [
                each + _per_token(baselines, micro).to(each)
                for each, micro in (zip(own, part, strict=True) if own else ())
            ]
            for own, part in zip(found, parts, strict=True)
        ]
    if algorithm.is_whitened():
        found = whitened(found, parts, algorithm, mask_staleness=mask_staleness)
    return with_advantages(parts, found)


def _penalties_of_the_others(
    parts: Parts, penalties: list[list[Tensor]], names: list[str]
) -> dict[str, float]:
    """Sequence -> mean of the summed penalties of its group's other sequences, wherever these are packed."""
    places = {name: i for i, name in enumerate(names)}
    own_totals = torch.zeros(len(names), dtype=torch.float64)
    for part, own in zip(parts, penalties, strict=True):
        for micro, each in zip(part, own, strict=True) if own else ():
            ids = micro.sequence_ids
            sums = own_totals.new_zeros(len(micro.names)).index_add(0, ids.cpu(), each.double().cpu())
            for name, total in zip(micro.names, sums.tolist(), strict=True):
                # A micro-batch without sequences holds one without a name or a token.
                if name in places:
                    own_totals[places[name]] = total
    totals = sum_over_ranks([own_totals.to(device())], len(names)).tolist()
    groups: dict[str, list[float]] = defaultdict(list)
    for name, total in zip(names, totals, strict=True):
        groups[name.rpartition("-")[0]].append(total)
    baselines = {}
    for name, total in zip(names, totals, strict=True):
        group = groups[name.rpartition("-")[0]]
        baselines[name] = (math.fsum(group) - total) / max(len(group) - 1, 1)
    return baselines


def _per_token(values: dict[str, float], micro: MicroBatch) -> Tensor:
    """[T] each token's sequence's value."""
    by_sequence = torch.tensor([values.get(name, 0.0) for name in micro.names], dtype=torch.float64)
    return by_sequence[micro.sequence_ids.cpu()]


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


def sum_from_here(values: Tensor, sequence_ids: Tensor) -> Tensor:
    """[T] -> [T]: each token gets the sum of itself and the later tokens of its sequence.

    `sequence_ids` [T] ascending. Sums are float64.
    """
    # On a GPU torch has no running sum of floats that is always the same.
    exact, ids = values.double().cpu(), sequence_ids.cpu()
    size = int(ids.max()) + 1 if len(ids) else 0
    ends = exact.new_zeros(size).index_add(0, ids, exact).cumsum(0)
    return (ends[ids] - exact.cumsum(0) + exact).to(values)
