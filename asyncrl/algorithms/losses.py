"""The loss: importance weight (detached) x surrogate, plus KL to a reference, less entropy; summed, over a
denominator that is global.

A term is a pure function of LossInputs and the recipe's algorithm section, chosen once at start: a built-in
by its name or anything with the same signature by "package.module:name". Nothing here averages: numerator
and denominator are summed over micro-batches and ranks first. Shapes: T response tokens of one micro-batch.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from asyncrl.algorithms.divergences import DIVERGENCES
from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.reductions import REDUCTIONS
from asyncrl.algorithms.rejections import REJECTIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.weights import WEIGHTS
from asyncrl.plugins import load_object
from asyncrl.recipe import Algorithm

Term = Callable[[LossInputs, Algorithm], Tensor]
"""[T] per token: a weight or a rejection (no gradient), or a surrogate (with one through `current`)."""


class LossParts(NamedTuple):
    total: Tensor
    """Scalar with gradient: the sum over the tokens that count."""
    denominator: Tensor
    """Scalar: this micro-batch's share of the global denominator."""
    weights: Tensor
    """[T] importance weight x rejections, 0 where rejected."""


Loss = Callable[[LossInputs], LossParts]
Found = TypeVar("Found")


def find_term(name: str, builtin: Mapping[str, Found]) -> Found:
    """A built-in by name, or the object that "package.module:name" names. Raises InputError."""
    return builtin[name] if name in builtin else cast(Found, load_object(name))


def make_loss(algorithm: Algorithm, *, max_new_tokens: int) -> Loss:
    """The loss of a recipe. Raises InputError when a term of its own cannot be loaded."""
    importance_weight: Term = find_term(algorithm.importance_weight, WEIGHTS)
    rejections: list[Term] = [find_term(name, REJECTIONS) for name in algorithm.rejection]
    surrogate: Term = find_term(algorithm.surrogate, SURROGATES)
    reduction = REDUCTIONS[algorithm.reduction]

    def loss(inputs: LossInputs) -> LossParts:
        weights = importance_weight(inputs, algorithm).detach()
        for rejection in rejections:
            weights = torch.where(rejection(inputs, algorithm), weights, torch.zeros_like(weights))
        losses = weights * surrogate(inputs, algorithm) + _penalty(inputs, algorithm)
        scale, denominator = reduction(inputs, max_new_tokens)
        # Select, never multiply by zero: 0 x NaN would be NaN.
        total = torch.where(inputs.mask, losses * scale, 0.0).sum()
        return LossParts(total, denominator, weights)

    return loss


def _penalty(inputs: LossInputs, algorithm: Algorithm) -> Tensor | float:
    """[T] KL to the reference less the entropy bonus, each by its coefficient; 0 without either.

    Unweighted: both are asked of the policy itself, also on tokens that were rejected.
    """
    penalty: Tensor | float = 0.0
    if algorithm.kl_coefficient and algorithm.kl_in == "loss":
        assert inputs.reference is not None, "KL in the loss needs the reference's log-probs"
        divergence = DIVERGENCES[algorithm.kl_estimator](inputs.current, inputs.reference)
        penalty = penalty + algorithm.kl_coefficient * divergence
    if algorithm.entropy_coefficient:
        assert inputs.entropies is not None, "an entropy bonus needs entropies"
        penalty = penalty - algorithm.entropy_coefficient * inputs.entropies
    return penalty
