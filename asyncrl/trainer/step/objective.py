"""From a micro-batch and its log-probs to the loss and the sums of the diagnostics.

Owns which log-probs the loss compares. With one optimizer step per batch the proximal policy is the one just
evaluated and costs nothing; with several it was evaluated before the first of them and is passed in, or it is
interpolated and never evaluated.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.batch_advantages import finish_batch
from asyncrl.algorithms.distillation import top_k_forward_kl
from asyncrl.algorithms.divergences import DIVERGENCES
from asyncrl.algorithms.inputs import LossInputs, bounded_ratio
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.own_terms import Faults, GradientWatch
from asyncrl.algorithms.proximal import PROXIMALS
from asyncrl.algorithms.rejections import squares_of_tokens_that_move_away
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.packing.batch import MicroBatch, imitation_weight, prompt_lengths
from asyncrl.trainer.step import quadrants
from asyncrl.trainer.step.diagnostics import micro_batch_sums
from asyncrl.trainer.step.judgments import Judged, Judgments, second_moment_bound
from asyncrl.trainer.step.token_choices import hits_by_covariance, top_by_entropy

NOTHING = Judged()


class LossRecord(NamedTuple):
    """Kept of a micro-batch under the loss."""

    sums: Tensor
    """Sums of `diagnostics`, the share of the global denominator among them; those of the gradient by
    quadrant come with the backward pass."""
    maxima: Tensor
    faults: list[Faults]
    """Faults in the recipe's own terms."""


class Objective:
    """The loss of a recipe."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        max_new_tokens: int,
        mask_staleness: int | None = None,
        forward_kl_coefficient: float = 0.0,
    ) -> None:
        self.algorithm = algorithm
        self.entropy_coefficient = algorithm.entropy_coefficient
        """Weight of the entropy bonus in the step that is trained."""
        self._limit = mask_staleness
        self._forward_kl_coefficient = forward_kl_coefficient
        self._loss = make_loss(algorithm, max_new_tokens=max_new_tokens)

    def finished(self, batch: Batch) -> Batch:
        """The batch with what is done to its advantages as a whole."""
        return finish_batch(batch, self.algorithm, mask_staleness=self._limit)

    def reported(self, metrics: dict[str, float]) -> dict[str, float]:
        """Those of a step's metrics that mean something here."""
        return metrics

    def needs_reference(self) -> bool:
        return self.algorithm.kl_coefficient > 0

    def prompt_lengths(self, batch: Batch) -> dict[str, int] | None:
        """`packing.batch.prompt_lengths` of an optimizer step's batch, where the loss is reduced by them."""
        if self.algorithm.reduction != "prompt_mean":
            return None
        return prompt_lengths(batch, mask_staleness=self._limit)

    def imitation(self, batch: Batch) -> float:
        """`packing.batch.imitation_weight` of an optimizer step's batch; 0 where nothing is imitated."""
        return imitation_weight(batch, mask_staleness=self._limit) if self.algorithm.nll_coefficient else 0.0

    def references(
        self, micro_batches: Sequence[MicroBatch], evaluate: Callable[[], list[Tensor]]
    ) -> list[Tensor]:
        """The reference's word on each micro-batch: here [T] log-probs. A call of every rank."""
        return evaluate()

    def needs_proximal(self) -> bool:
        """Whether the proximal log-probs of a whole optimizer step are needed before its loss."""
        return self.needs_second_moment() or self.algorithm.entropy_control != "none"

    def needs_second_moment(self) -> bool:
        """Whether tokens are judged by the second moment of an optimizer step's log-ratios."""
        algorithm = self.algorithm
        return "second_moment" in algorithm.rejection or "second_moment_clip" in algorithm.trust_region

    def needs_entropies(self) -> bool:
        """Whether the entropies of a whole optimizer step are needed before its loss."""
        return self.algorithm.top_entropy_share < 1

    def judge(
        self,
        micro_batches: Sequence[MicroBatch],
        known: Sequence[Tensor],
        entropies: Sequence[Tensor],
        *,
        draw: str,
    ) -> Judgments:
        """Judgments over all ranks' micro-batches, the same on every rank. `known` are log-probs [T] of the
        policy before the batch, `entropies` [T] those of the current one, where they are needed; `draw` seeds
        random choices. A call of every rank."""
        bound, hits, are_top = math.inf, None, None
        if self.needs_entropies():
            share = self.algorithm.top_entropy_share
            are_top = top_by_entropy(micro_batches, entropies, share, mask_staleness=self._limit)
        if self.needs_second_moment():
            found = zip(micro_batches, known, strict=True) if known else ()
            squares = [self.squares_that_move_away(micro, each) for micro, each in found]
            bound = second_moment_bound(squares, self.algorithm)
        if self.algorithm.entropy_control != "none":
            hits = hits_by_covariance(
                micro_batches, known, self.algorithm, mask_staleness=self._limit, draw=draw
            )
        return Judgments(bound, hits, are_top)

    def teaches(self, sequence: ScoredSequence) -> bool:
        """Whether its loss has a gradient: at an advantage of 0 a built-in surrogate has none, nor has a
        sequence that is masked. With a teacher each token has an advantage of its own."""
        algorithm = self.algorithm
        return not sequence.is_masked and bool(
            any(advantage for _, advantage in sequence.advantage_runs())
            or algorithm.kl_coefficient
            or algorithm.behavior_kl_coefficient
            or self.entropy_coefficient
            or algorithm.entropy_control == "kl_cov"
            or (algorithm.nll_coefficient and sequence.is_correct())
            # The critic gives each token an advantage of its own.
            or algorithm.needs_critic()
            or sequence.teacher_logprobs
            or algorithm.surrogate not in SURROGATES
        )

    def __call__(
        self,
        micro: MicroBatch,
        outputs: tuple[Tensor, ...],
        *,
        proximal: Tensor | None = None,
        reference: Tensor | None = None,
        sampled: Tensor | None = None,
        judged: Judged = NOTHING,
        gradients: GradientWatch | None = None,
    ) -> tuple[Tensor, LossRecord]:
        """(sum, which Megatron's schedule differentiates, what is kept).

        `outputs` are log-probs and entropies, [T] each with gradient, where servers kept some tokens the
        log-probs over all, and what `PolicyModel` makes of a teacher's likeliest tokens; `proximal` [T] is
        None when the policy before the step is the one that made them. `reference` is over all tokens,
        `sampled` [T] as of `exact_split.token_sums`. Raises InputError for a term of the recipe's own that
        gives no tensor for a loss; values that are no numbers are counted in what is kept, and what they do
        to the gradient in `gradients`.
        """
        current, entropies = outputs[:2]
        whole = None if micro.kept is None else outputs[2]
        # Sums over sequences are local: a micro-batch holds each of its sequences whole and in order.
        assert len(current) == len(micro.sequence_ids)
        inputs = self._inputs(micro, current, proximal)
        if self.algorithm.has_own_loss_terms():
            inputs = _with_origins(inputs, micro)
        inputs = dataclasses.replace(
            inputs,
            entropies=entropies,
            entropy_coefficient=self.entropy_coefficient,
            reference=reference,
            whole=whole,
            second_moment_bound=judged.second_moment_bound,
            hit=judged.hit,
            is_top=judged.is_top,
            forward_kl=_forward_kl(micro, outputs),
            forward_kl_coefficient=self._forward_kl_coefficient,
        )
        try:
            parts = self._loss(inputs)
        except InputError as error:
            names = f"{micro.names[0]} to {micro.names[-1]}" if micro.names else "none"
            raise InputError(f"{error} It was called for the trajectories {names}.") from error
        if gradients is not None:
            what = f"algorithm.surrogate {self.algorithm.surrogate} has a loss with the gradient"
            gradients.watch(what, inputs, micro.names)
        with torch.no_grad():
            sums, maxima = micro_batch_sums(inputs, parts, micro, algorithm=self.algorithm, sampled=sampled)
        quadrants.watch(inputs, sums)
        return parts.total, LossRecord(sums, maxima, parts.faults)

    def squares_that_move_away(self, micro: MicroBatch, proximal: Tensor) -> Tensor:
        """[K] float64: what `second_moment` and `second_moment_clip` judge, on the CPU."""
        inputs = self._inputs(micro.to(proximal.device), proximal)
        return squares_of_tokens_that_move_away(inputs, self.algorithm).double().cpu()

    def is_interpolated(self) -> bool:
        """Whether the proximal policy is made of the one in training, so that no pass evaluates it."""
        return self.algorithm.proximal == "interpolated"

    def _inputs(self, micro: MicroBatch, current: Tensor, known: Tensor | None = None) -> LossInputs:
        """`known` are log-probs of the policy before the batch, None where it is the current one."""
        is_interpolated = self.is_interpolated()
        policy = current.detach() if known is None or is_interpolated else known
        # A token without a finite log-prob is left out of numerator and denominator, and counted.
        behavior = torch.where(micro.behavior.isfinite(), micro.behavior, policy)
        return LossInputs(
            current=current,
            proximal=PROXIMALS[self.algorithm.proximal](policy, behavior, micro.lags),
            evaluated=policy if is_interpolated else None,
            behavior=behavior,
            advantages=micro.advantages,
            mask=micro.counted(self._limit),
            sequence_ids=micro.sequence_ids,
            prompt_lengths=micro.prompt_lengths,
            imitated=micro.imitated,
        )


def _forward_kl(micro: MicroBatch, outputs: tuple[Tensor, ...]) -> Tensor | None:
    """[T] with gradient."""
    if micro.top is None:
        return None
    return top_k_forward_kl(micro.top.logprobs.index_select(0, micro.copies), outputs[-1])


def _with_origins(inputs: LossInputs, micro: MicroBatch) -> LossInputs:
    """With what is known of where tokens and sequences are from."""
    return dataclasses.replace(
        inputs,
        lags=micro.lags,
        versions=micro.version - micro.lags,
        finishes=micro.finishes,
        sources=micro.sources,
    )


def importance_ratios(part: Sequence[MicroBatch], proximals: Sequence[Tensor]) -> list[Tensor]:
    """[T] of each micro-batch: the policy before the step over those that sampled, 1 where these told no
    number. Empty without proximal log-probs, on all pipeline stages but the last."""
    found = zip(part, proximals, strict=True) if proximals else ()
    return [
        bounded_ratio(proximal, torch.where(behavior.isfinite(), behavior, proximal))
        for micro, proximal in found
        for behavior in (micro.behavior.to(proximal.device),)
    ]


def kl_penalties(
    micro: MicroBatch,
    proximal: Tensor,
    reference: Tensor,
    algorithm: Algorithm,
    *,
    mask_staleness: int | None = None,
) -> Tensor:
    """[T] coefficient * kl of each token, 0 for those that no loss counts. Both log-probs are over all
    tokens, whatever servers kept."""
    divergence = DIVERGENCES[algorithm.kl_estimator](proximal, reference)
    is_counted = micro.counted(mask_staleness).to(divergence.device)
    return algorithm.kl_coefficient * torch.where(is_counted, divergence, 0.0)
