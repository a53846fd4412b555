"""Judgments over a whole optimizer step, all micro-batches and ranks, before the loss of any of them: the
tokens of the highest entropy, those that algorithm.entropy_control holds back, and a bound on the second
moment.

They are made by the policy before the batch: at one optimizer step per batch the one in training, whose
log-probs then cost a forward pass of their own. Entropies are those of the policy in training. Every rank
finds the same bound by halving, so that neither packing nor layout changes a choice; of equal tokens all are
chosen. Lists are [micro-batch] of [T] tensors, empty on all pipeline stages but the last.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.entropy_controls import GRID, covariances, on_grid
from asyncrl.algorithms.rejections import (
    find_second_moment_bound,
    largest_float,
    second_moment_sums,
    squares_of_tokens_that_move_away,
)
from asyncrl.recipe import Algorithm, Recipe
from asyncrl.recipe.algorithm_terms import ClipCov, KlCov, SecondMoment, SecondMomentClip
from asyncrl.records import ScoredSequence
from asyncrl.trainer.network.model import device
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.step.batch_values import sum_over_ranks
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import MiniBatch, StepPart


class Judgments(StepPart):
    """Gives the loss what must be known of a whole optimizer step; at most one forward pass."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self._algorithm = recipe.algorithm
        self._mask_staleness = recipe.rollout.mask_staleness

    def teaches(self, sequence: ScoredSequence) -> bool:
        return isinstance(self._algorithm.entropy_control, KlCov)

    def loss_inputs(self, mini: MiniBatch) -> None:
        algorithm, passes = self._algorithm, self._learner.passes
        chunks, micro_batches = self._learner.parallel_chunks, mini.micro_batches
        found: dict[str, list[Tensor]] = {}
        if algorithm.top_entropy_share < 1:
            evaluated = passes.with_entropies(chunks, micro_batches, mini.temperature)
            found["is_top"] = top_by_entropy(
                micro_batches,
                [entropies for _, entropies in evaluated],
                algorithm.top_entropy_share,
                mask_staleness=self._mask_staleness,
            )
            if mini.proximals is None:
                mini.proximals = [logprobs for logprobs, _ in evaluated]
        elif mini.proximals is None:
            mini.proximals = passes.logprobs(chunks, micro_batches, mini.temperature)
        limit = second_moment_limit(algorithm)
        bound = math.inf if limit is None else self._second_moment_bound(mini, limit)
        if algorithm.entropy_control.name != "none":
            found["hit"] = hits_by_covariance(
                micro_batches,
                mini.proximals,
                algorithm,
                mask_staleness=self._mask_staleness,
                draw=f"{self._learner.seed}:{mini.version}",
            )

        def give(index: int, *_: object) -> Mapping[str, Any]:
            return {"second_moment_bound": bound} | {name: each[index] for name, each in found.items()}

        mini.givens.append(give)

    def _second_moment_bound(self, mini: MiniBatch, limit: float) -> float:
        known = zip(mini.micro_batches, mini.proximals, strict=True) if mini.proximals else ()
        squares = [self._squares_that_move_away(micro, each) for micro, each in known]
        return second_moment_bound(squares, self._algorithm, limit)

    def _squares_that_move_away(self, micro: MicroBatch, proximal: Tensor) -> Tensor:
        """[K] float64: what `second_moment` and `second_moment_clip` judge, on the CPU."""
        inputs = self._learner.objective.inputs(micro.to(proximal.device), proximal)
        return squares_of_tokens_that_move_away(inputs, self._algorithm).double().cpu()


def second_moment_limit(algorithm: Algorithm) -> float | None:
    """Limit on the second moment of an optimizer step's log-ratios; None where no term judges by it."""
    terms = (*algorithm.rejection, *algorithm.trust_region)
    limits = [term.limit for term in terms if isinstance(term, (SecondMoment, SecondMomentClip))]
    return limits[0] if limits else None


def second_moment_bound(squares: Sequence[Tensor], algorithm: Algorithm, limit: float) -> float:
    """Bound of second_moment or second_moment_clip, the same on every rank. `squares` are this rank's, by
    micro-batch on the CPU: empty on all pipeline stages but the last."""
    own = torch.cat(list(squares)) if squares else torch.zeros(0, dtype=torch.float64)

    def count_and_sum(bound: float) -> tuple[float, float]:
        sums = second_moment_sums(own, bound, algorithm).to(device())
        count, total = sum_over_ranks([sums], 2).tolist()
        return count, total

    return find_second_moment_bound(count_and_sum, limit)


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
    control = algorithm.entropy_control
    assert isinstance(control, (ClipCov, KlCov))
    wanted = max(1, int(control.share * count))
    if isinstance(control, KlCov):
        return _largest(own, [mask & (each > 0) for mask, each in zip(masks, own, strict=True)], wanted)
    inside = [
        mask & (each > control.low) & (each < control.high) for mask, each in zip(masks, own, strict=True)
    ]
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
