"""Rejections and trust regions: which tokens teach, apart from how much. Several are combined: a token must
pass each.

A rejected token has no gradient: no policy loss, no KL, no entropy bonus, and no place in the sequence ratio
of gspo and gmpo. A token outside a trust region, which has moved too far from the policy that sampled it, has
no policy loss and no such place either, but keeps what pulls it back: KL to the reference and to the behavior
policy, and the entropy bonus. Both keep their place in the denominator, so that what is left weighs no more
than before, and in what describes the batch rather than the step: whitening, KL in the reward, and a critic's
loss, whose values answer for what was sampled.

Below, rho = pi_prox / mu of one token, p its probability under the policy in training (also between the
optimizer steps of a batch), m that under the policy that sampled it, A its advantage, and D(a, b) = a ln(a /
b) + (1 - a) ln((1 - a) / (1 - b)), the KL of "this token or another". Shapes: T response tokens; every
rejection gives [T] bool, True for kept, every trust region True for inside.
"""

import math
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_ratio, pushes_on, sequence_mean, sequence_total
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import (
    Band,
    BinaryKl,
    GeometricMean,
    Ipo,
    Kpop,
    OffPolicySequence,
    SecondMomentClip,
    SequenceKl,
    TokenVeto,
    TotalVariation,
)
from asyncrl.recipe.terms import chosen

M2PO_LOW, M2PO_HIGH = 0.7, 1.5
"""Ratios between which second_moment_clip never clips, as in its authors' code."""


def dppo_tv(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside unless A > 0 and p - m > limit, or A < 0 and p - m < -limit

    Source: DPPO with total variation, arXiv 2602.04879 (2026); its script has 0.15, prime-rl had 0.2.
    Use: in place of PPO's clip, which binds on rare tokens first: a difference of probabilities leaves these
    alone. With surrogate ratio or cispo, clip_around: behavior and importance_weight: none.
    Fails: a rare token may grow by any factor before it is stopped.
    """
    moved = _probability(inputs.current) - _probability(inputs.behavior)
    return ~pushes_on(moved, inputs) | (moved.abs() <= chosen(algorithm.trust_region, TotalVariation).limit)


def dppo_kl(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside unless A > 0 and p > m, or A < 0 and p < m, and D(m, p) > limit

    Source: DPPO with the binary KL, arXiv 2602.04879 (2026); its script has 0.05.
    Use: as dppo_tv, and tokens that were near certain are stopped sooner.
    Fails: as dppo_tv: a rare token may grow by any factor before it is stopped.
    """
    moved = inputs.current.detach() - inputs.behavior
    limit = chosen(algorithm.trust_region, BinaryKl).limit
    return ~pushes_on(moved, inputs) | (binary_kl(inputs.behavior, inputs.current) <= limit)


def ipo(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside iff |p - m| <= limit, whatever the sign of A

    Source: prime-rl's default since August 2026 (pull request 3418), with 0.3 and surrogate ratio.
    Use: very stale data: also what drifted against its advantage is no evidence of the policy any longer.
    Fails: a token that left its region, whatever for, is not led back unless KL or entropy do it.
    """
    moved = _probability(inputs.current) - _probability(inputs.behavior)
    return moved.abs() <= chosen(algorithm.trust_region, Ipo).limit


def kpop(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside iff max(D(p, m), D(m, p)) <= limit

    Source: KPop, Ling Team 2026, ringtech.notion.site/kpop.
    Use: engines that disagree on few tokens: rare tokens may differ by a large factor, certain ones may not.
    Fails: symmetric: drops tokens that training has moved the right way.
    """
    there, back = binary_kl(inputs.current, inputs.behavior), binary_kl(inputs.behavior, inputs.current)
    return torch.maximum(there, back) <= chosen(algorithm.trust_region, Kpop).limit


def band(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside iff low < p / m < high, whatever the sign of A

    Source: the double-sided mask of SAO 2026 (arXiv 2607.07508, eq. 3). With surrogate ratio, whose gradient
    is p / m A grad ln p, and clip_around: behavior it is its loss: what is masked stays in the denominator.
    Use: single rollouts, stale data, several optimizer steps per batch: a mask around the policy that
    sampled, wide enough above for rare tokens to grow.
    Fails: a ratio is blind to size: near-certain tokens pass unseen, rare ones leave the band by noise.
    """
    moved, bounds = inputs.current.detach() - inputs.behavior, chosen(algorithm.trust_region, Band)
    low = math.log(bounds.low) if bounds.low > 0 else -math.inf
    return (moved > low) & (moved < math.log(bounds.high))


def off_policy_sequence(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside unless A < 0 and mean_t ln(m_t / p_t) > limit

    Source: DeepSeek-V3.2 2025 (arXiv 2512.02556, eq. 9), against the policy that sampled, so that one
    optimizer step per batch does not disarm it.
    Use: wrong answers that the policy would no longer give: pushing them down further teaches nothing.
    Fails: a mean over a long response hides the few tokens that moved; right answers are never stopped.
    """
    means = sequence_mean(inputs.behavior - inputs.current.detach(), inputs)
    limit = chosen(algorithm.trust_region, OffPolicySequence).limit
    return (inputs.advantages >= 0) | (means <= limit)


def second_moment_clip(inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    """inside unless A > 0 and p / m > max(e^tau, 1.5), or A < 0 and p / m < min(e^-tau, 0.7); tau is the
    largest for which the mean of min((log q / m)^2, tau^2) over the tokens that move away is <=
    limit, q the policy before the batch (in training, where the proximal is interpolated)

    Source: M2PO as its authors' code has it (arXiv 2510.01161, 2025), over the tokens of an optimizer step,
    of all micro-batches and ranks; theirs is per micro-batch.
    Use: very stale data; a range that follows the drift. The rejection second_moment, as the paper's text,
    drops the largest squares until the rest is within the limit: it binds sooner, and below a ratio of 1.5.
    Fails: with one optimizer step per batch a forward pass more; inside [0.7, 1.5] it never binds.
    """
    moved = inputs.current.detach() - inputs.behavior
    reach = math.sqrt(inputs.second_moment_bound)
    low, high = -max(reach, -math.log(M2PO_LOW)), max(reach, math.log(M2PO_HIGH))
    return ~pushes_on(moved, inputs) | ((moved >= low) & (moved <= high))


TRUST_REGIONS = {
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "ipo": ipo,
    "kpop": kpop,
    "band": band,
    "off_policy_sequence": off_policy_sequence,
    "second_moment_clip": second_moment_clip,
}


def _probability(logprobs: Tensor) -> Tensor:
    return _log_probability(logprobs).exp()


def _log_probability(logprobs: Tensor) -> Tensor:
    """[T] without gradient, at most 0: a sum of rounded exponentials may pass 1 by one unit in the last
    place."""
    return logprobs.detach().clamp(max=0.0)


def binary_kl(first: Tensor, second: Tensor) -> Tensor:
    """[T] a ln(a / b) + (1 - a) ln((1 - a) / (1 - b)) of two probabilities, by their logs; inf where the
    second excludes what the first allows."""
    first, second = _log_probability(first), _log_probability(second)
    # 1 - p, with the digits that a subtraction loses near 1; float32 has no log-prob between 1 - 2^-24 and 1.
    rest, other = (-torch.expm1(x).clamp(max=-(2.0**-24)) for x in (first, second))
    return first.exp() * (first - second) + torch.xlogy(rest, rest) - torch.xlogy(rest, other)


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
