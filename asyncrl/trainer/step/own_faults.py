"""Faults of the recipe's own terms in a step: agreed on by all ranks, reported by the first that knows."""

from collections.abc import Sequence

from asyncrl.algorithms.own_terms import Faults, describe, own_names
from asyncrl.errors import Diverged, InputError
from asyncrl.recipe import Algorithm
from asyncrl.trainer.ranks import ranks

Found = Sequence[tuple[Faults, Sequence[str]]]
"""Faults of each micro-batch of this rank, with the names of its sequences."""


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
