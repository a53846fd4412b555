"""Rejections: which tokens teach at all, apart from how much. Several are combined: a token must pass each.

A rejected token has no gradient: no policy loss, no KL, no entropy bonus, and no place in the sequence ratio
of gspo and gmpo. It keeps its place in the denominator, so that what is left weighs no more than before, and
in what describes the batch rather than the step: whitening, KL in the reward, and a critic's loss, whose
values answer for what was sampled. Below, rho = pi_prox / mu of one token.

Shapes: T response tokens; every function gives [T] bool, True for kept.
"""

import math
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_ratio, pushes_on, sequence_mean, sequence_total
from asyncrl.algorithms.trust_regions import binary_kl
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import GeometricMean, SecondMomentClip, SequenceKl, TokenVeto
from asyncrl.recipe.terms import chosen

_INFINITY_BITS = 0x7F800000


def largest_float(is_within: Callable[[float], bool]) -> float:
    """The largest float32 from 0 to inf that is within; `is_within` holds at 0, and never again once it does
    not. Asks 32 times at most."""
    if is_within(math.inf):
        return math.inf
    # Floats of at least 0 are in the order of their bits: 31 halvings find the last one, exactly.
    low, high = 0, _INFINITY_BITS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(_float_of(middle)) else (low, middle)
    return _float_of(low)


def _float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def token_range(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep t iff mask_low <= rho_t <= mask_high

    Source: IcePop's range (Ling Team 2025, arXiv 2510.18855) without its weight.
    Use: the mask of `masked` with another importance weight, such as none or sequence_truncated.
    Fails: like `masked`: stale tokens that training moved most are lost.
    """
    ratio = bounded_ratio(inputs.proximal, inputs.behavior)
    return (ratio >= algorithm.mask_low) & (ratio <= algorithm.mask_high)


def geometric_mean(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep a sequence iff low <= exp(mean_t log rho_t) <= high

    Source: geometric rejection sampling, verl's rollout correction (2025), after Liu et al. 2025, "When Speed
    Kills Stability".
    Use: drops responses that deviate on average, whatever their length.
    Fails: one disastrous token hides in a long response; the bounds must be tuned to the engines at hand.
    """
    ratio = sequence_mean(inputs.proximal - inputs.behavior, inputs).exp()
    bounds = chosen(algorithm.rejection, GeometricMean)
    return (ratio >= bounds.low) & (ratio <= bounds.high)


def second_moment(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep t unless it moves away (A > 0 and rho > 1, or A < 0 and rho < 1) and (log rho)^2 > b; b is the
    largest for which the mean of (log rho)^2 over the kept tokens that move away is <= limit

    Source: M2PO, Zheng et al. 2025 (arXiv 2510.01161), its threshold 0.04; over the tokens of an optimizer
    step, of all micro-batches and ranks.
    Use: very stale data: removes the few outliers that carry the variance and keeps the rest untouched. The
    paper's text, not its authors' code: that is the trust region second_moment_clip.
    Fails: under a large drift of all tokens it costs those of most entropy, around which reasoning branches;
    with one optimizer step per batch a forward pass more.
    """
    moved = inputs.proximal - inputs.behavior
    return ~(pushes_on(moved, inputs) & inputs.mask) | (moved.square() <= inputs.second_moment_bound)


def squares_of_tokens_that_move_away(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """[K] float32: (log rho)^2, and under the trust region second_moment_clip, which clips pi / mu whatever
    was interpolated, (log pi / mu)^2 with pi the policy that was evaluated."""
    policy = inputs.policy() if clips_by_second_moment(algorithm) else inputs.proximal
    moved = policy - inputs.behavior
    return moved.square()[pushes_on(moved, inputs) & inputs.mask]


def clips_by_second_moment(algorithm: Algorithm) -> bool:
    return any(isinstance(region, SecondMomentClip) for region in algorithm.trust_region)


def second_moment_sums(squares: Tensor, bound: float, algorithm: Algorithm) -> Tensor:
    """[2] float64, number and sum of squares that judge `bound`: those up to it, or under the trust region
    second_moment_clip all, each counted as at most the bound."""
    if clips_by_second_moment(algorithm):
        counted = squares.clamp(max=bound)
    else:
        counted = squares[squares <= bound]
    return torch.stack([counted.new_tensor(len(counted)), counted.sum()])


def find_second_moment_bound(count_and_sum: Callable[[float], tuple[float, float]], limit: float) -> float:
    """The largest float32 b for which sum / count is at most `limit`; inf when all that there is may stay.

    `count_and_sum(b)` is `second_moment_sums` of all tokens: their mean grows with b, so that halving the
    range finds it.
    """

    def is_within(bound: float) -> bool:
        count, total = count_and_sum(bound)
        return total <= limit * count

    return largest_float(is_within)


def token_veto(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep a sequence iff no rho_t < low

    Source: the catastrophic-token veto of verl's rollout correction (2025).
    Use: a response with one token that the trainer holds nearly impossible was corrupted on the way.
    Fails: long stale responses meet such a token by chance; a bound that is too high starves the run.
    """
    low = chosen(algorithm.rejection, TokenVeto).low
    is_impossible = bounded_ratio(inputs.proximal, inputs.behavior) < low
    return sequence_total(is_impossible.to(inputs.proximal.dtype), inputs) == 0


def sequence_kl(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """keep a sequence iff mean_t D(mu_t, pi_prox_t) <= limit; D is the KL of "this token or another"

    Source: FlashREINFORCE, NVIDIA 2026 (github.com/yifanzhang-pro/FlashREINFORCE), limit 5e-3.
    Use: one response per prompt on stale data without a clip: whole responses leave that the policy would no
    longer give.
    Fails: a mean hides the few tokens that moved; the older the data, the fewer responses are left.
    """
    moved = sequence_mean(binary_kl(inputs.behavior, inputs.proximal), inputs)
    return moved <= chosen(algorithm.rejection, SequenceKl).limit


REJECTIONS = {
    "token_range": token_range,
    "geometric_mean": geometric_mean,
    "second_moment": second_moment,
    "token_veto": token_veto,
    "sequence_kl": sequence_kl,
}
