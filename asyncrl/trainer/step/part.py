"""The seam of a step: what a feature may do, at which stage, and what travels from stage to stage.

A feature of a step is one `StepPart`. `Learner` calls its parts at every stage in the order of
`asyncrl.trainer.parts.table`, which leads from a recipe to its parts. The learner knows no part by name, and
parts meet only in what `Step` and `MiniBatch` carry.

Shapes: T response tokens of one micro-batch.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.own_terms import Faults
from asyncrl.errors import Diverged
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.columns import Column
from asyncrl.trainer.step.diagnostics import Tally

Given = Callable[[int, MicroBatch, tuple[Tensor, ...], LossInputs], Mapping[str, Any]]
"""(index of a micro-batch, the micro-batch, the model's outputs, the loss's inputs so far) -> fields of
`LossInputs` that a part fills in."""


class LossRecord(NamedTuple):
    """Kept of a micro-batch under the loss."""

    sums: Tensor
    """Sums of `diagnostics`, the share of the global denominator among them; those of the gradient by
    quadrant come with the backward pass."""
    maxima: Tensor
    faults: list[Faults]
    """Faults in the recipe's own terms."""


@dataclass(slots=True)
class MiniBatch:
    """This rank's micro-batches of one optimizer step, and what their loss needs."""

    micro_batches: list[MicroBatch]
    temperature: float
    version: PolicyVersion = 0
    """Version that the batch is trained from; it seeds what is drawn."""
    proximals: list[Tensor] | None = None
    """[T] of each micro-batch, log-probs of the policy before the step; None where the policy in training is
    that policy. Empty on all pipeline stages but the last."""
    givens: list[Given] = field(default_factory=list)
    forward_only: bool = False
    """Whether the passes only measure, and make no gradient."""
    kept: list[tuple[MicroBatch, LossRecord]] = field(default_factory=list)
    """Micro-batches with what the loss kept of them, once the passes are over."""


@dataclass(slots=True)
class Step:
    """One batch on its way through the stages."""

    batch: Batch
    evaluate: Callable[[MiniBatch], list[tuple[Tensor, Tensor]]]
    """Forward pass of the policy: log-probs [T] of each micro-batch, over the tokens that were sampled from
    and over all."""
    keeps_proximals: bool = True
    """Whether evaluated log-probs become the proximals."""
    trains: bool = True
    """False where the batch is only measured: no part may train on it."""
    mini_batches: list[MiniBatch] = field(default_factory=list)
    """By optimizer step; from the stage `packed` on."""
    penalties: list[list[Tensor]] | None = None
    """[T] of each micro-batch, still to be taken from the rewards of its tokens. The part that takes them
    sets None."""
    ratios: list[list[Tensor]] | None = None
    """[T] of each micro-batch: the policy before the step over those that sampled."""
    is_over: bool = False
    """Set by a part in `advantages`: the policy does not learn from this batch, which is only measured."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Columns that stages before the optimizer add."""
    _logprobs: list[list[tuple[Tensor, Tensor]]] | None = None

    @property
    def version(self) -> PolicyVersion:
        return self.batch.taken_version

    def policy_logprobs(self) -> list[list[tuple[Tensor, Tensor]]]:
        """[mini-batch][micro-batch] of ([T] over the tokens that were sampled from, [T] over all).

        Under the policy before the step. One pass, however many parts ask for it; its log-probs become the
        proximals.
        """
        if self._logprobs is None:
            self._logprobs = [self.evaluate(mini) for mini in self.mini_batches]
            for mini, found in zip(self.mini_batches, self._logprobs, strict=True):
                if self.keeps_proximals:
                    mini.proximals = [logprobs for logprobs, _ in found]
        return self._logprobs

    def micro_batches(self) -> list[list[MicroBatch]]:
        """By optimizer step."""
        return [mini.micro_batches for mini in self.mini_batches]

    def replace(self, micro_batches: Sequence[list[MicroBatch]]) -> None:
        """The same micro-batches, with other advantages."""
        for mini, found in zip(self.mini_batches, micro_batches, strict=True):
            mini.micro_batches = found


class Saved(NamedTuple):
    """A model that a part adds to checkpoints."""

    prefix: str
    """Prefix of the names of its tensors."""
    model: Policy
    optimizer: MegatronOptimizer | None
    """None of a model that is not trained."""
    missing: str
    """Follows "... holds " in the error for a checkpoint without this model."""


class StepPart:
    """A feature of a step. Every method is a stage, and does nothing here; each is called on every rank.

    Stages of a step, in order: `claims`, `check`, `prepare`, `packed`, `evaluate`, `keep`, `advantages`; then
    for each optimizer step `loss_inputs`, `passes`, `accumulated`, `rate_factor`, `stepped` (or `diverged`);
    then `finish`, `report`. A part's constructor gets the learner, whose parts before this one are there, and
    the recipe.
    """

    def claims(self, version: PolicyVersion) -> bool:
        """Whether the batch of `version` is for this part alone, because the policy has not sampled it. Such
        a batch passes `keep` and `learn`, and no other stage."""
        return False

    def learn(self, batch: Batch) -> dict[str, float]:
        """Trains on a batch that this part claims; returns the columns of the step."""
        raise NotImplementedError

    def check(self, batch: Batch) -> None:
        """Raises InputError for a batch that the part cannot use."""

    def columns(self) -> Sequence[Column]:
        """The columns of sequences that this part reads; a column that no part reads is not packed."""
        return ()

    def prepare(self, step: Step) -> None:
        """Before the batch is packed."""

    def teaches(self, sequence: ScoredSequence) -> bool:
        """Whether this part gives the sequence a gradient, whatever its advantage. Asked while packing."""
        return False

    def packed(self, step: Step) -> None:
        """The mini-batches are there, and no pass has seen them."""

    def evaluate(self, step: Step) -> None:
        """Forward passes over the whole batch, by the weights before the step."""

    def keep(self, version: PolicyVersion) -> None:
        """The last moment at which all weights are those of `version`."""

    def advantages(self, step: Step) -> None:
        """Replaces the advantages, or ends the step for the policy (`Step.is_over`)."""

    def loss_inputs(self, mini: MiniBatch) -> None:
        """Before the passes of an optimizer step: adds to `mini.givens`, or sets `mini.proximals`."""

    def passes(self, mini: MiniBatch) -> AbstractContextManager[None]:
        """Stands around the passes of an optimizer step."""
        return contextlib.nullcontext()

    def accumulated(self, mini: MiniBatch, tally: Tally) -> None:
        """The gradient is in the buffers, summed over ranks and not divided yet; `tally` has its sums."""

    def rate_factor(self, tally: Tally) -> float:
        """Factor on the learning rate of the optimizer step that `tally` has last; the same on every rank."""
        return 1.0

    def stepped(self, norm: float | None) -> None:
        """After an optimizer step on a gradient of this norm, which lies in the buffers; None where the step
        was skipped, because the gradient overflowed."""

    def diverged(self, error: Diverged) -> None:
        """The gradient is not finite: raises a better explanation than `error`, if the part has one."""

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """After the last optimizer step, with the metrics of the loss: sets what the next step depends on,
        and returns columns. Not called where the policy did not learn."""
        return {}

    def report(self) -> dict[str, float]:
        """Columns of every step, also of one that only measured."""
        return {}

    def sent(self) -> dict[str, Any]:
        """Fields of the next `TakeRequest` that this part fills in. Called once between two steps."""
        return {}

    def policies(self) -> Iterator[Policy]:
        """Models of this part that hold versions of the policy."""
        return iter(())

    def set_schedules(self, recipe: Recipe) -> None:
        """Later steps follow the learning rates of `recipe`."""

    def saved(self) -> Iterator[Saved]:
        """Models that checkpoints hold."""
        return iter(())

    def before_saving(self) -> None:
        """Makes the weights of `saved` whole."""

    def state(self) -> dict[str, Any]:
        """State that is not a tensor, for checkpoints, by name."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back `state` from all that a checkpoint holds; a name may be missing."""
