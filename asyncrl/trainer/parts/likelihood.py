"""The objective of supervised fine-tuning: the negative log-likelihood of the tokens that are learned.

Its mean over all learned tokens of the batch: sums are divided once by the global count, so that neither
packing nor the number of ranks changes it.
"""

import dataclasses
import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import LossParts
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.step.objective import Objective

REPORTED = (
    *("loss", "entropy", "grad_norm", "learning_rate", "optimizer_steps"),
    *("num_tokens", "num_packed_tokens", "nonfinite_tokens"),
)
"""Metrics of a step that are about no sampling and no reward."""


class Likelihood(Objective):
    """-log p of each learned token: the targets of a micro-batch; its other tokens are context."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(algorithm, max_new_tokens=1)
        self._loss = negative_log_likelihood

    def finished(self, batch: Batch) -> Batch:
        return batch

    def reported(self, metrics: dict[str, float]) -> dict[str, float]:
        kept = {name: metrics[name] for name in REPORTED if name in metrics}
        return kept | {"perplexity": perplexity(metrics["loss"])}

    def teaches(self, sequence: ScoredSequence) -> bool:
        return True

    def inputs(self, micro: MicroBatch, current: Tensor, known: Tensor | None = None) -> LossInputs:
        """No policy sampled the rows: the one in training stands in, and every ratio is 1."""
        inputs = super().inputs(micro, current, known)
        return dataclasses.replace(inputs, behavior=inputs.proximal)


def perplexity(loss: float) -> float:
    """exp of a mean loss per token, in nats; finite for any that is."""
    return math.exp(min(loss, 700.0))


def negative_log_likelihood(inputs: LossInputs) -> LossParts:
    """sum of -log p over the tokens that count, and their number"""
    ones = torch.ones_like(inputs.proximal)
    losses = torch.where(inputs.mask, -inputs.current, torch.zeros_like(inputs.current))
    none = torch.zeros_like(inputs.mask)
    return LossParts(losses.sum(), inputs.mask.sum(), ones, ones, None, none, [])
