"""The loss: importance weight (detached) x surrogate, plus KL to a reference, less entropy; summed, over a
denominator that is global.

Tokens that count are those of the mask; survivors those of them that weight and rejections leave a weight
above 0. Only survivors have a gradient, and a token's loss has that of its own log-prob alone.

A term is a pure function of LossInputs and the recipe's algorithm section, chosen once at start: a built-in
by its name or anything with the same signature by "package.module:name". Nothing here averages: numerator
and denominator are summed over micro-batches and ranks first. Shapes: T response tokens of one micro-batch.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor

from asyncrl.algorithms.divergences import DIVERGENCES
from asyncrl.algorithms.inputs import LossInputs, sequence_mean
from asyncrl.algorithms.own_terms import Faults, OwnTerm, Term
from asyncrl.algorithms.reductions import REDUCTIONS
from asyncrl.algorithms.rejections import REJECTIONS
from asyncrl.algorithms.surrogates import CLIPS, SURROGATES
from asyncrl.algorithms.weights import WEIGHTS
from asyncrl.recipe import Algorithm
from asyncrl.system.plugins import load_object


class LossParts(NamedTuple):
    total: Tensor
    """Scalar with gradient: the sum over the tokens that count."""
    denominator: Tensor
    """Scalar: this micro-batch's share of the global denominator."""
    weights: Tensor
    """[T] importance weight x rejections, 0 where rejected."""
    applied: Tensor
    """[T] what multiplies the surrogate: the weights, under gmpo their geometric mean over the survivors."""
    clipped: Tensor | None
    """[T] bool, the survivors that the surrogate clipped; None of a surrogate that does not tell."""
    faults: list[Faults]
    """Values of the recipe's own terms that are not usable as numbers for a loss."""


Loss = Callable[[LossInputs], LossParts]


def find_term(key: str, name: str, builtin: Mapping[str, Term]) -> Term:
    """A built-in by name, or the object that "package.module:name" names, checked at each call. Raises
    InputError."""
    return builtin[name] if name in builtin else OwnTerm(key, name, cast(Term, load_object(name)))


def make_loss(algorithm: Algorithm, *, max_new_tokens: int) -> Loss:
    """The loss of a recipe. Raises InputError when a term of its own cannot be loaded."""
    importance_weight = find_term("importance_weight", algorithm.importance_weight, WEIGHTS)
    rejections = [find_term("rejection", name, REJECTIONS) for name in algorithm.rejection]
    surrogate = find_term("surrogate", algorithm.surrogate, SURROGATES)
    reduction = REDUCTIONS[algorithm.reduction]

    def loss(inputs: LossInputs) -> LossParts:
        faults: list[Faults] = []
        weights = _call(importance_weight, inputs, algorithm, faults).detach()
        for rejection in rejections:
            is_kept = _call(rejection, inputs, algorithm, faults)
            weights = torch.where(is_kept, weights, torch.zeros_like(weights))
        survivors = dataclasses.replace(inputs, mask=inputs.mask & (weights != 0))
        applied = _applied(weights, survivors, algorithm)
        losses = applied * _call(surrogate, survivors, algorithm, faults) + _penalty(inputs, algorithm)
        scale, denominator = reduction(inputs, max_new_tokens)
        # Select, never multiply by zero: 0 x NaN would be NaN.
        total = torch.where(survivors.mask, losses * scale, 0.0).sum()
        return LossParts(total, denominator, weights, applied, _clipped(survivors, algorithm), faults)

    return loss


def _call(term: Term, inputs: LossInputs, algorithm: Algorithm, faults: list[Faults]) -> Tensor:
    """[T]; what a term of the recipe's own gets wrong joins `faults`."""
    found = term(inputs, algorithm)
    if isinstance(term, OwnTerm) and term.key != "rejection":
        faults.append(term.faults(found, inputs))
    return found


def _applied(weights: Tensor, survivors: LossInputs, algorithm: Algorithm) -> Tensor:
    """[T] each token's weight; under gmpo, whose ratio is a geometric mean, its sequence's geometric mean."""
    if algorithm.surrogate != "gmpo":
        return weights
    logs = torch.where(survivors.mask, weights, torch.ones_like(weights)).log()
    return torch.where(survivors.mask, sequence_mean(logs, survivors).exp(), torch.zeros_like(weights))


@torch.no_grad()
def _clipped(survivors: LossInputs, algorithm: Algorithm) -> Tensor | None:
    clips = CLIPS.get(algorithm.surrogate)
    return None if clips is None else clips(survivors, algorithm) & survivors.mask


def positive_nll(inputs: LossInputs) -> Tensor:
    """-ln p at tokens of correct responses, over their share of all tokens: under token_mean their mean

    Source: VAPO's positive example language model loss, Yue et al. 2025 (arXiv 2504.05118), coefficient 0.1;
    RAFT is it alone. p is over all tokens, also where servers kept some.
    Use: tasks that are rarely solved: a right answer is imitated, whatever its advantage is.
    Fails: answers that are right by luck are imitated too, and entropy falls; no importance weight corrects
    it for stale tokens.
    """
    assert inputs.imitated is not None
    return -inputs.imitated * inputs.unfiltered()


def _penalty(inputs: LossInputs, algorithm: Algorithm) -> Tensor | float:
    """[T] KL to the reference less the entropy bonus, and the NLL of correct responses, each by its
    coefficient; 0 without any.

    Both are of the distribution over all tokens, also where top-p, top-k or min-p left some. Unweighted: both
    are asked of the policy itself. A token that was rejected has neither, as in verl: what
    came to it may be as corrupt as itself.
    """
    penalty: Tensor | float = 0.0
    if algorithm.kl_coefficient and algorithm.kl_in == "loss":
        assert inputs.reference is not None, "KL in the loss needs the reference's log-probs"
        divergence = DIVERGENCES[algorithm.kl_estimator](inputs.unfiltered(), inputs.reference)
        penalty = penalty + algorithm.kl_coefficient * divergence
    if algorithm.entropy_coefficient:
        assert inputs.entropies is not None, "an entropy bonus needs entropies"
        penalty = penalty - algorithm.entropy_coefficient * inputs.entropies
    if algorithm.nll_coefficient and inputs.imitated is not None:
        penalty = penalty + algorithm.nll_coefficient * positive_nll(inputs)
    return penalty
