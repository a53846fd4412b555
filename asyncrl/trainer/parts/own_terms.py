"""Terms of the loss that the recipe brings along: what they may see, and faults of theirs in a step.

Faults are agreed on by all ranks, and reported by the first that knows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.own_terms import Faults, GradientWatch, describe, own_names
from asyncrl.errors import Diverged, InputError
from asyncrl.recipe import Algorithm, Recipe
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.diagnostics import Tally
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import MiniBatch, StepPart

Found = Sequence[tuple[Faults, Sequence[str]]]
"""Faults of each micro-batch of this rank, with the names of its sequences."""


class OwnTerms(StepPart):
    """Names the term of the recipe's own that made a step fail, with its trajectory.

    Raises InputError where a term gave a value that is not a number, before the optimizer; and where the
    gradient of an own surrogate is not finite, which is not a matter of the loss scale.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._algorithm = recipe.algorithm
        self._has_loss_terms = recipe.algorithm.has_own_loss_terms()
        self._gradients: GradientWatch | None = None

    def loss_inputs(self, mini: MiniBatch) -> None:
        if self._has_loss_terms:
            self._gradients = GradientWatch()
            mini.givens.append(self._origins)

    def _origins(
        self, index: int, micro: MicroBatch, outputs: tuple[Tensor, ...], inputs: LossInputs
    ) -> Mapping[str, Any]:
        """Origins of tokens and sequences, which own terms may read."""
        assert self._gradients is not None
        what = f"algorithm.surrogate {self._algorithm.surrogate.name} has a loss with the gradient"
        self._gradients.watch(what, inputs, micro.names)
        return {
            "lags": micro.lags,
            "versions": micro.version - micro.lags,
            "finishes": micro.finishes,
            "sources": micro.sources,
        }

    def accumulated(self, mini: MiniBatch, tally: Tally) -> None:
        if self._has_loss_terms and tally.num_faults():
            raise_first([(fault, micro.names) for micro, kept in mini.kept for fault in kept.faults])

    def stepped(self, norm: float | None) -> None:
        if norm is None and self._gradients:
            raise_first(self._gradients.found)

    def diverged(self, error: Diverged) -> None:
        explain_divergence(error, self._algorithm, self._gradients.found if self._gradients else [])


def raise_first(found: Found) -> None:
    """Raises InputError for the first rank's first fault, on every rank. A call of every rank."""
    for words in filter(None, ranks.gather(describe(found))):
        raise InputError(
            f"{words}; expected finite numbers, of a weight at least 0. Bound log-ratios before exp "
            f"(asyncrl.algorithms.inputs.bounded_ratio). Fix it and run the same command again: the run "
            f"resumes from its last checkpoint with the same batches."
        )


def explain_divergence(error: Diverged, algorithm: Algorithm, gradients: Found) -> None:
    """Raises what is known beyond `error`: InputError where the gradient of an own surrogate's loss is not
    finite, Diverged with the names of the own terms. A call of every rank; returns where there are none."""
    names = own_names(algorithm)
    if not names:
        return
    raise_first(gradients)
    raise Diverged(
        f"{error} The recipe's own terms make this loss: look at {', '.join(names)} first."
    ) from error
