"""Estimates of KL(pi || reference) per token, from tokens of pi: a pull back to a frozen reference.

Below, d = log pi - log pi_ref of one token, and r = pi / mu the ratio to the policy that sampled it, without
correction by an importance weight. No d is so large that the pull ends: beyond d = -20 exponentials become
straight lines, finite in float32. Shapes: T response tokens.
"""

import math

from torch import Tensor

from asyncrl.algorithms.inputs import MAX_LOG_RATIO, LossInputs, bounded_ratio


def k1(policy: Tensor, reference: Tensor) -> Tensor:
    """d

    Source: Schulman 2020, joschu.net/blog/kl-approx.html.
    Use: in the reward, where its policy gradient is the exact one of the KL.
    Fails: in the loss its expected gradient is zero: it only adds noise. Often negative for a single token.
    """
    return policy - reference


def k2(policy: Tensor, reference: Tensor) -> Tensor:
    """d^2 / 2

    Source: Schulman 2020, joschu.net/blog/kl-approx.html.
    Use: in the loss: its gradient d grad(log pi) is, on-policy, that of the KL.
    Fails: its value is biased where the policies are far apart.
    """
    return k1(policy, reference).square() / 2


def k3(policy: Tensor, reference: Tensor) -> Tensor:
    """exp(-d) - 1 + d

    Source: Schulman 2020, joschu.net/blog/kl-approx.html; GRPO's choice (arXiv 2402.03300, eq. 4).
    Use: in the loss, as GRPO does: unbiased as a value, never negative, calm.
    Fails: its gradient (1 - exp(-d)) grad(log pi) is of another divergence: bounded where pi is likelier,
    exploding where the reference is.
    """
    difference = k1(policy, reference)
    # exp(-d) up to d = -20, its tangent beyond.
    beyond = (-difference - MAX_LOG_RATIO).clamp(min=0)
    return (-difference - beyond).exp() + math.exp(MAX_LOG_RATIO) * beyond - 1 + difference


def k3_plus(policy: Tensor, reference: Tensor) -> Tensor:
    """exp(-d) - 1 + d as a value, with the gradient d grad(log pi) of k2

    Source: verl's k3+ (2025), after arXiv 2510.01555 (2025).
    Use: in the loss: k3's number to look at, and the gradient that is, on-policy, that of the KL.
    Fails: value and gradient are of two functions: a check by differences fails. Off-policy it is biased.
    """
    pull = k2(policy, reference)
    return k3(policy, reference).detach() + pull - pull.detach()


def unbiased(policy: Tensor, reference: Tensor, inputs: LossInputs) -> Tensor:
    """r (exp(-d) - 1 + d), with the gradient through r: r d grad(log pi)

    Source: DeepSeek-V3.2 2025 (arXiv 2512.02556, eq. 7).
    Use: in the loss of stale batches: the KL of the policy in training, whatever policy sampled.
    Fails: r is not truncated, so that few tokens may carry it.
    """
    # Written as it is: where k3 is a tangent, its own gradient would not cancel to r d.
    weights = bounded_ratio(inputs.current, inputs.behavior).detach()
    return weights * k3_plus(policy, reference)


DIVERGENCES = {"k1": k1, "k2": k2, "k3": k3, "k3_plus": k3_plus}
"""Divergences of two log-probs."""
WEIGHTED_DIVERGENCES = {"unbiased": unbiased}
"""Divergences that ask for the policy that sampled as well."""


def divergence(name: str, inputs: LossInputs) -> Tensor:
    """[T] the estimate by that name, over all tokens, from a token's loss inputs with a reference."""
    assert inputs.reference is not None, "KL in the loss needs the reference's log-probs"
    if name in WEIGHTED_DIVERGENCES:
        return WEIGHTED_DIVERGENCES[name](inputs.unfiltered(), inputs.reference, inputs)
    return DIVERGENCES[name](inputs.unfiltered(), inputs.reference)


def behavior_divergence(inputs: LossInputs) -> Tensor:
    """(log r)^2

    Source: prime-rl's kl_tau (2026), there 1e-3.
    Use: with a trust region: leads the tokens outside, which have no other gradient, back to their sampler.
    Fails: holds the policy back everywhere else too; the weight must stay small.
    """
    return (inputs.current - inputs.behavior).square()
