"""From a micro-batch and its log-probs to the loss and the sums of the diagnostics.

Owns which log-probs the loss compares. With one optimizer step per batch the proximal policy is the one just
evaluated and costs nothing; with several it was evaluated before the first of them and is passed in.
"""

import dataclasses

import torch
from torch import Tensor

from asyncrl.algorithms.divergences import DIVERGENCES
from asyncrl.algorithms.inputs import LossInputs, sum_from_here
from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm
from asyncrl.trainer.batch import MicroBatch
from asyncrl.trainer.diagnostics import micro_batch_sums


class Objective:
    """The loss of a recipe."""

    def __init__(
        self, algorithm: Algorithm, *, max_new_tokens: int, mask_staleness: int | None = None
    ) -> None:
        self.algorithm = algorithm
        self._limit = mask_staleness
        self._loss = make_loss(algorithm, max_new_tokens=max_new_tokens)

    def needs_reference(self) -> bool:
        return self.algorithm.kl_coefficient > 0

    def _is_fresh_enough(self, lags: Tensor) -> Tensor:
        """[T] bool, by rollout.mask_staleness."""
        return torch.ones_like(lags, dtype=torch.bool) if self._limit is None else lags <= self._limit

    def __call__(
        self,
        micro: MicroBatch,
        outputs: tuple[Tensor, Tensor],
        *,
        proximal: Tensor | None = None,
        reference: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """(sum, denominator, (sums, maxima)): what Megatron's schedule adds up.

        `outputs` are log-probs and entropies, [T] each with gradient; `proximal` [T] is None when the policy
        before the step is the one that made them.
        """
        current, entropies = outputs
        if proximal is None:
            proximal = current.detach()
        # A log-prob that is no number says nothing of its token: out of numerator and denominator, counted.
        is_finite = micro.behavior.isfinite()
        # Sums over sequences are local: a micro-batch holds each of its sequences whole and in order.
        assert len(current) == len(micro.sequence_ids)
        inputs = LossInputs(
            current=current,
            proximal=proximal,
            behavior=torch.where(is_finite, micro.behavior, proximal),
            advantages=micro.advantages,
            mask=is_finite & self._is_fresh_enough(micro.lags),
            sequence_ids=micro.sequence_ids,
            entropies=entropies,
            reference=reference,
        )
        inputs = with_kl_reward(inputs, self.algorithm)
        parts = self._loss(inputs)
        with torch.no_grad():
            sums = micro_batch_sums(inputs, parts, micro, algorithm=self.algorithm)
        return parts.total, parts.denominator.int(), sums


def with_kl_reward(inputs: LossInputs, algorithm: Algorithm) -> LossInputs:
    """Advantages less the KL that a token and those after it run up, where the recipe puts KL in the reward.

    A_t - coefficient * sum_{s >= t} kl_s, kl of the proximal policy: the return-to-go of a reward of
    -coefficient * kl per token, as in REINFORCE++ (Hu et al. 2025, arXiv 2501.03262). With a critic they hold
    it already: its rewards are less `kl_penalties`.
    """
    if not has_kl_reward(algorithm) or algorithm.needs_critic():
        return inputs
    assert inputs.reference is not None, "KL in the reward needs the reference's log-probs"
    divergence = DIVERGENCES[algorithm.kl_estimator](inputs.proximal, inputs.reference)
    taken = algorithm.kl_coefficient * sum_from_here(divergence, inputs)
    return dataclasses.replace(inputs, advantages=inputs.advantages - taken)


def has_kl_reward(algorithm: Algorithm) -> bool:
    return algorithm.kl_coefficient > 0 and algorithm.kl_in == "reward"


def kl_penalties(micro: MicroBatch, proximal: Tensor, reference: Tensor, algorithm: Algorithm) -> Tensor:
    """[T] coefficient * kl of each token, 0 for those that do not count."""
    divergence = DIVERGENCES[algorithm.kl_estimator](proximal, reference)
    is_counted = micro.behavior.isfinite().to(divergence.device)
    return algorithm.kl_coefficient * torch.where(is_counted, divergence, 0.0)
