"""Trust regions: which tokens have moved so far from the policy that sampled them that they teach no further.

A token outside has no gradient of the policy loss and no place in the sequence ratio of gspo and gmpo. Unlike
one that a rejection takes out it keeps what pulls it back: KL to the reference and to the behavior policy,
and the entropy bonus. It keeps its place in every denominator. Several are combined: a token must be inside
each.

Below, p is the token's probability under the policy in training (also between the optimizer steps of a
batch), m that under the policy that sampled it, A its advantage, and D(a, b) = a ln(a / b) + (1 - a)
ln((1 - a) / (1 - b)), the KL of "this token or another". Shapes: T response tokens; every function gives [T]
bool, True for inside.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, pushes_on, sequence_mean
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import Band, BinaryKl, Ipo, Kpop, OffPolicySequence, TotalVariation
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
