"""From a micro-batch and its log-probs to the loss and the sums of the diagnostics.

Owns which log-probs the loss compares. With one optimizer step per batch the proximal policy is the one just
evaluated and costs nothing; with several it was evaluated before the first of them and is passed in, or it is
interpolated and never evaluated. Inputs of the loss beyond these come from parts (`part.Given`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.batch_advantages import finish_batch
from asyncrl.algorithms.inputs import PROXIMALS, LossInputs
from asyncrl.algorithms.losses import LossParts, make_loss
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.columns import Column, TokenColumn
from asyncrl.trainer.step.batch_values import IMITATED, PROMPT_LENGTHS, with_imitation, with_prompt_lengths
from asyncrl.trainer.step.diagnostics import micro_batch_sums
from asyncrl.trainer.step.part import Given, LossRecord
from asyncrl.trainer.step.token_sums import watch_quadrants


class Objective:
    """The loss of a recipe."""

    def __init__(
        self, algorithm: Algorithm, *, max_new_tokens: int, mask_staleness: int | None = None
    ) -> None:
        self.algorithm = algorithm
        self.entropy_coefficient = algorithm.entropy_bonus.coefficient
        """Weight of the entropy bonus in the step that is trained."""
        self._limit = mask_staleness
        self._loss = make_loss(algorithm, max_new_tokens=max_new_tokens)

    def finished(self, batch: Batch) -> Batch:
        """The batch with what is done to its advantages as a whole."""
        return finish_batch(batch, self.algorithm, mask_staleness=self._limit)

    def reported(self, metrics: dict[str, float]) -> dict[str, float]:
        """Those of a step's metrics that mean something here."""
        return metrics

    def told(self, batch: Batch) -> Batch:
        """The batch of an optimizer step, with the columns that its loss needs of all of it."""
        if self.algorithm.reduction == "prompt_mean":
            batch = with_prompt_lengths(batch, mask_staleness=self._limit)
        return with_imitation(batch, mask_staleness=self._limit) if self.algorithm.nll_coefficient else batch

    def columns(self) -> list[Column]:
        """The columns that the loss reads."""
        return [TokenColumn(PROMPT_LENGTHS), TokenColumn(IMITATED)]

    def references(
        self, micro_batches: Sequence[MicroBatch], evaluate: Callable[[], list[Tensor]]
    ) -> list[Tensor]:
        """The reference's word on each micro-batch: here [T] log-probs. A call of every rank."""
        return evaluate()

    def teaches(self, sequence: ScoredSequence) -> bool:
        """Whether the loss has a gradient of itself: at an advantage of 0 a built-in surrogate has none, nor
        has a sequence that is masked. Parts may give a sequence one (`StepPart.teaches`)."""
        algorithm = self.algorithm
        return not sequence.is_masked and bool(
            any(advantage for _, advantage in sequence.advantage_runs())
            or algorithm.kl.coefficient
            or algorithm.behavior_kl_coefficient
            or self.entropy_coefficient
            or (algorithm.nll_coefficient and sequence.is_correct())
            or algorithm.surrogate.name not in SURROGATES
        )

    def __call__(
        self,
        micro: MicroBatch,
        outputs: tuple[Tensor, ...],
        *,
        proximal: Tensor | None = None,
        givens: Sequence[Given] = (),
        index: int = 0,
    ) -> tuple[Tensor, LossRecord]:
        """(sum, which Megatron's schedule differentiates, what is kept).

        `outputs` are those of a `PolicyModel`, [T] each with gradient; `proximal` [T] is None when the policy
        before the step is the one that made them. `index` is the micro-batch's place in its mini-batch, for
        `givens`. Raises InputError for a term of the recipe's own that gives no tensor for a loss; values
        that are no numbers are counted in what is kept.
        """
        current, entropies = outputs[:2]
        # Sums over sequences are local: a micro-batch holds each of its sequences whole and in order.
        assert len(current) == len(micro.sequence_ids)
        inputs = self.inputs(micro, current, proximal)
        found: dict[str, Any] = {}
        for given in givens:
            found |= given(index, micro, outputs, inputs)
        inputs = dataclasses.replace(
            inputs,
            entropies=entropies,
            entropy_coefficient=self.entropy_coefficient,
            whole=micro.whole(outputs),
            **found,
        )
        try:
            parts = self._minimized(micro, inputs)
        except InputError as error:
            names = f"{micro.names[0]} to {micro.names[-1]}" if micro.names else "none"
            raise InputError(f"{error} It was called for the trajectories {names}.") from error
        with torch.no_grad():
            sums, maxima = micro_batch_sums(inputs, parts, micro, algorithm=self.algorithm)
        watch_quadrants(inputs, sums)
        return parts.total, LossRecord(sums, maxima, parts.faults)

    def is_interpolated(self) -> bool:
        """Whether the proximal policy is made of the one in training, so that no pass evaluates it."""
        return self.algorithm.proximal == "interpolated"

    def _minimized(self, micro: MicroBatch, inputs: LossInputs) -> LossParts:
        return self._loss(inputs)

    def inputs(self, micro: MicroBatch, current: Tensor, known: Tensor | None = None) -> LossInputs:
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
            prompt_lengths=micro.columns.get(PROMPT_LENGTHS),
            imitated=micro.columns.get(IMITATED),
            sequence_count=len(micro.names) or None,
        )
