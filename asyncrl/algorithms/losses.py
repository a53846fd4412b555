"""The loss: importance weight (detached) x surrogate, plus KL to a reference, less entropy; summed, over a
denominator that is global.

Tokens that count are those of the mask; survivors those of them that weight and rejections leave a weight
above 0. Only survivors have a gradient, and a token's loss has that of its own log-prob alone. Survivors
outside a trust region have no surrogate, only the penalties.

A term is a pure function, chosen once at start: a built-in of LossInputs and the recipe's algorithm section,
or the recipe's own "package.module:name" of LossInputs and its options. Nothing here averages: numerator
and denominator are summed over micro-batches and ranks first. Shapes: T response tokens of one micro-batch.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.divergences import behavior_divergence, divergence
from asyncrl.algorithms.entropy_controls import ENTROPY_CONTROLS, low_probability, top_entropy
from asyncrl.algorithms.inputs import LossInputs, sequence_mean
from asyncrl.algorithms.own_terms import Faults, OwnTerm, Term, load_term
from asyncrl.algorithms.rejections import REJECTIONS, TRUST_REGIONS
from asyncrl.algorithms.surrogates import CLIPS, SURROGATES
from asyncrl.algorithms.weights import REDUCTIONS, WEIGHTS
from asyncrl.recipe import Algorithm, terms


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
    outside: Tensor
    """[T] bool, the survivors outside a trust region."""
    faults: list[Faults]
    """Values of the recipe's own terms that are not usable as numbers for a loss."""


Loss = Callable[[LossInputs], LossParts]


def find_term(key: str, chosen: terms.Term, builtin: Mapping[str, Term]) -> Term:
    """A built-in, or the recipe's own function, checked at each call. Raises InputError."""
    return load_term(key, chosen) if isinstance(chosen, terms.OwnFunction) else builtin[chosen.name]


def make_loss(algorithm: Algorithm, *, max_new_tokens: int) -> Loss:
    """The loss of a recipe. Raises InputError when a term of its own cannot be loaded."""
    importance_weight = find_term("importance_weight", algorithm.importance_weight, WEIGHTS)
    rejections = [find_term("rejection", term, REJECTIONS) for term in algorithm.rejection]
    regions = [find_term("trust_region", term, TRUST_REGIONS) for term in algorithm.trust_region]
    surrogate = find_term("surrogate", algorithm.surrogate, SURROGATES)
    control = ENTROPY_CONTROLS.get(algorithm.entropy_control.name)
    reduction = REDUCTIONS[algorithm.reduction]

    def loss(inputs: LossInputs) -> LossParts:
        faults: list[Faults] = []
        weights = _call(importance_weight, inputs, algorithm, faults).detach()
        for rejection in rejections:
            is_kept = _call(rejection, inputs, algorithm, faults)
            weights = torch.where(is_kept, weights, torch.zeros_like(weights))
        survivors = inputs.mask & (weights != 0)
        inside = survivors
        for region in regions:
            inside = inside & _call(region, inputs, algorithm, faults)
        taught = dataclasses.replace(inputs, mask=inside)
        if algorithm.probability_damping:
            taught = dataclasses.replace(taught, advantages=low_probability(inputs, algorithm))
        applied = _applied(weights, taught, algorithm)
        losses = applied * _call(surrogate, taught, algorithm, faults)
        if algorithm.top_entropy_share < 1:
            losses = top_entropy(losses, taught, algorithm)
        # Select, never multiply by zero: 0 x NaN would be NaN.
        if regions:
            losses = torch.where(inside, losses, 0.0)
        if control is not None:
            losses = control(losses, taught, algorithm)
        losses = losses + _penalty(inputs, algorithm)
        scale, denominator = reduction(inputs, max_new_tokens)
        total = torch.where(survivors, losses * scale, 0.0).sum()
        clipped = _clipped(taught, algorithm)
        return LossParts(total, denominator, weights, applied, clipped, survivors & ~inside, faults)

    return loss


def _call(term: Term, inputs: LossInputs, algorithm: Algorithm, faults: list[Faults]) -> Tensor:
    """[T]; what a term of the recipe's own gets wrong joins `faults`."""
    found = term(inputs, algorithm)
    if isinstance(term, OwnTerm) and not term.selects:
        faults.append(term.faults(found, inputs))
    return found


def _applied(weights: Tensor, survivors: LossInputs, algorithm: Algorithm) -> Tensor:
    """[T] each token's weight, 0 outside a trust region; under gmpo, whose ratio is a geometric mean, its
    sequence's geometric mean."""
    mask = survivors.mask
    if algorithm.surrogate.name != "gmpo":
        return torch.where(mask, weights, torch.zeros_like(weights)) if algorithm.trust_region else weights
    logs = torch.where(mask, weights, torch.ones_like(weights)).log()
    return torch.where(mask, sequence_mean(logs, survivors).exp(), torch.zeros_like(weights))


@torch.no_grad()
def _clipped(survivors: LossInputs, algorithm: Algorithm) -> Tensor | None:
    clips = CLIPS.get(algorithm.surrogate.name)
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
    """[T] KL to the reference and to the behavior policy less the entropy bonus, the NLL of correct responses
    and the forward KL to a teacher, each by its coefficient; 0 without any.

    KL to the reference and entropy are of the distribution over all tokens, also where top-p, top-k or min-p
    left some. Unweighted: both are asked of the policy itself. A rejected token has none of them, as in verl:
    what came to it may be as corrupt as itself.
    """
    penalty: Tensor | float = 0.0
    if algorithm.kl.coefficient and algorithm.kl.place == "loss":
        penalty = penalty + algorithm.kl.coefficient * divergence(algorithm.kl.estimator, inputs)
    if algorithm.behavior_kl_coefficient:
        penalty = penalty + algorithm.behavior_kl_coefficient * behavior_divergence(inputs)
    bonus = inputs.entropy_coefficient
    if bonus is None:
        bonus = algorithm.entropy_bonus.coefficient
    if bonus:
        assert inputs.entropies is not None, "an entropy bonus needs entropies"
        penalty = penalty - bonus * inputs.entropies
    if algorithm.nll_coefficient and inputs.imitated is not None:
        penalty = penalty + algorithm.nll_coefficient * positive_nll(inputs)
    if inputs.forward_kl is not None:
        penalty = penalty + inputs.forward_kl_coefficient * inputs.forward_kl
    return penalty
