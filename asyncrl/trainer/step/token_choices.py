"""Tokens that are chosen among all of an optimizer step, of all micro-batches and ranks, before its loss.

Every rank finds the same bound by halving, so that neither packing nor layout changes a choice; of equal
tokens all are chosen. Lists are [micro-batch] of [T] tensors, empty on all pipeline stages but the last.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.bisection import largest_float
from asyncrl.algorithms.entropy_controls import GRID, covariances, on_grid
from asyncrl.recipe import Algorithm
from asyncrl.trainer.network.model import device
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.step.totals import sum_over_ranks


def hits_by_covariance(
    micro_batches: Sequence[MicroBatch],
    logprobs: Sequence[Tensor],
    algorithm: Algorithm,
    *,
    mask_staleness: int | None,
    draw: str,
) -> list[Tensor]:
    """[T] bool each: the tokens that algorithm.entropy_control holds back. `draw` seeds a random choice."""
    masks = _counted(micro_batches, logprobs, mask_staleness)
    found = list(zip(micro_batches, logprobs, masks, strict=True)) if logprobs else []
    sums = [
        torch.stack([mask.sum().double(), _sum(micro.advantages.to(mask.device), mask), _sum(each, mask)])
        for micro, each, mask in found
    ]
    count, advantage, logprob = sum_over_ranks(sums, 3).tolist()
    if not count:
        return masks
    own = [
        covariances(each, micro.advantages.to(each.device), logprob / count, advantage / count)
        for micro, each, _ in found
    ]
    wanted = max(1, int(algorithm.covariance_share * count))
    if algorithm.entropy_control == "kl_cov":
        return _largest(own, [mask & (each > 0) for mask, each in zip(masks, own, strict=True)], wanted)
    low, high = algorithm.clip_cov_low, algorithm.clip_cov_high
    inside = [mask & (each > low) & (each < high) for mask, each in zip(masks, own, strict=True)]
    draws = [_draws(micro, draw).to(each.device) for micro, each, _ in found]
    return _smallest(draws, inside, wanted)


def top_by_entropy(
    micro_batches: Sequence[MicroBatch],
    entropies: Sequence[Tensor],
    share: float,
    *,
    mask_staleness: int | None,
) -> list[Tensor]:
    """[T] bool each: the `share` of the tokens with the highest entropies, rounded up."""
    masks = _counted(micro_batches, entropies, mask_staleness)
    # A rounded entropy of a certain token may be below 0, and 0 is not above 0.
    own = [on_grid(each).clamp(min=0) + 1 / GRID for each in entropies]
    return _largest(own, masks, math.ceil(share * _count(masks)))


def _largest(values: list[Tensor], masks: list[Tensor], wanted: int) -> list[Tensor]:
    """[T] bool each: the `wanted` largest values above 0 under the masks, ties included; all where there are
    fewer."""
    bound = largest_float(
        lambda b: _count([mask & (each >= b) for each, mask in zip(values, masks, strict=True)]) >= wanted
    )
    return [mask & (each >= bound) for each, mask in zip(values, masks, strict=True)]


def _smallest(values: list[Tensor], masks: list[Tensor], wanted: int) -> list[Tensor]:
    """[T] bool each: the `wanted` smallest values under the masks; all where there are fewer."""
    bound = largest_float(
        lambda b: _count([mask & (each <= b) for each, mask in zip(values, masks, strict=True)]) <= wanted
    )
    return [mask & (each <= bound) for each, mask in zip(values, masks, strict=True)]


def _count(chosen: list[Tensor]) -> int:
    """Chosen tokens of all micro-batches and ranks."""
    own = [each.sum(dtype=torch.float64).view(1).to(device()) for each in chosen]
    return int(sum_over_ranks(own, 1).item())


def _counted(
    micro_batches: Sequence[MicroBatch], values: Sequence[Tensor], mask_staleness: int | None
) -> list[Tensor]:
    """[T] bool each, on the device of `values`: the tokens that the loss counts."""
    pairs = zip(micro_batches, values, strict=True) if values else ()
    return [micro.counted(mask_staleness).to(each.device) for micro, each in pairs]


def _sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.double(), 0.0).sum()


def _draws(micro: MicroBatch, seed: str) -> Tensor:
    """[T] numbers in [0, 1): each token's own, by `seed`, its sequence's name and its place in it."""
    sizes = torch.bincount(micro.line_ids, minlength=len(micro.lines)).tolist()
    found = [
        np.random.default_rng(
            int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")
        ).random(size, dtype=np.float32)
        for name, size in zip(micro.lines, sizes, strict=True)
    ]
    return torch.from_numpy(np.concatenate(found))
