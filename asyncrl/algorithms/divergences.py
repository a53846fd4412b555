"""Estimates of KL(pi || reference) per token, from tokens of pi: a pull back to a frozen reference.

Below, d = log pi - log pi_ref of one token, bounded to +-20. Shapes: T response tokens.
"""

from torch import Tensor

from asyncrl.algorithms.inputs import MAX_LOG_RATIO


def k1(policy: Tensor, reference: Tensor) -> Tensor:
    """d

    Source: Schulman 2020, joschu.net/blog/kl-approx.html.
    Use: in the reward, where its policy gradient is the exact one of the KL.
    Fails: in the loss its expected gradient is zero: it only adds noise. Often negative for a single token.
    """
    return (policy - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


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
    return (-difference).exp() - 1 + difference


DIVERGENCES = {"k1": k1, "k2": k2, "k3": k3}
