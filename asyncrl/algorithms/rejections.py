"""Rejections: which tokens teach at all, apart from how much. Several are combined: a token must pass each.

A rejected token keeps its place in the denominator, so that what is left weighs no more than before. Below,
rho = pi_prox / mu of one token. Shapes: T response tokens; every function gives [T] bool, True for kept.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_ratio, sequence_mean, sequence_total
from asyncrl.recipe import Algorithm


def token_range(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep t iff mask_low <= rho_t <= mask_high

    Source: IcePop's range (Ling Team 2025, arXiv 2510.18855) without its weight.
    Use: the mask of `masked` beside another importance weight, such as none or sequence_truncated.
    Fails: like `masked`: stale tokens that training moved most are lost.
    """
    ratio = bounded_ratio(inputs.proximal, inputs.behavior)
    return (ratio >= algorithm.mask_low) & (ratio <= algorithm.mask_high)


def geometric_mean(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep a sequence iff geometric_low <= exp(mean_t log rho_t) <= geometric_high

    Source: geometric rejection sampling, verl's rollout correction (2025), after Liu et al. 2025, "When Speed
    Kills Stability".
    Use: drops responses that deviate on average, whatever their length.
    Fails: one disastrous token hides in a long response; the bounds must be tuned to the engines at hand.
    """
    ratio = sequence_mean(inputs.proximal - inputs.behavior, inputs).exp()
    return (ratio >= algorithm.geometric_low) & (ratio <= algorithm.geometric_high)


def second_moment(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep the tokens of smallest (log rho)^2, as many as leave their mean <= second_moment_limit

    Source: M2PO, Zheng et al. 2025 (arXiv 2510.01161), its threshold 0.04; here per sequence rather than per
    batch, which implies the bound on the batch and does not depend on micro-batches.
    Use: very stale data: removes the few outliers that carry the variance and keeps the rest untouched.
    Fails: under a large drift of all tokens it costs those of most entropy, around which reasoning branches.
    """
    squares = torch.where(inputs.mask, inputs.proximal - inputs.behavior, 0.0).double().square()
    # Tokens that do not count go last, where they thin out no mean.
    order = torch.where(inputs.mask, squares, torch.inf).argsort(stable=True)
    order = order[inputs.sequence_ids[order].argsort(stable=True)]
    sizes = torch.bincount(inputs.sequence_ids)
    starts = (sizes.cumsum(0) - sizes)[inputs.sequence_ids]
    running = squares[order].cumsum(0)
    before = torch.cat([running.new_zeros(1), running])[starts]
    ranks = torch.arange(1, len(order) + 1, device=order.device) - starts
    keep = (running - before) / ranks <= algorithm.second_moment_limit
    return torch.empty_like(keep).index_copy(0, order, keep)


def token_veto(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep a sequence iff no rho_t < veto_low

    Source: the catastrophic-token veto of verl's rollout correction (2025).
    Use: a response with one token that the trainer holds nearly impossible was corrupted on the way.
    Fails: long stale responses meet such a token by chance; a veto_low that is too high starves the run.
    """
    is_impossible = bounded_ratio(inputs.proximal, inputs.behavior) < algorithm.veto_low
    return sequence_total(is_impossible.to(inputs.proximal.dtype), inputs) == 0


REJECTIONS = {
    "token_range": token_range,
    "geometric_mean": geometric_mean,
    "second_moment": second_moment,
    "token_veto": token_veto,
}
