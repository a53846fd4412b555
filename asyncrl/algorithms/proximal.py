"""Proximal policies: what policy ratios are taken against, and what importance weights correct for.

Below, p is the policy in training, mu the one that sampled. Shapes: T response tokens.
"""

from torch import Tensor


def forward(policy: Tensor, behavior: Tensor, lags: Tensor) -> Tensor:
    """pi_prox = the policy before the batch's first optimizer step, evaluated

    Source: decoupled PPO, Hilton et al. 2022 (arXiv 2110.00641); AReaL, Fu et al. 2025 (arXiv 2505.24298).
    Use: the default: exact, and free at one optimizer step per batch, where p itself is it.
    Fails: several optimizer steps per batch cost a forward pass over the whole batch before the second one.
    """
    return policy


def interpolated(policy: Tensor, behavior: Tensor, lags: Tensor) -> Tensor:
    """log pi_prox = log mu + (1 - 1/k) (log sg[p] - log mu), k the token's staleness; pi_prox = p at k = 0

    Source: A-3PO, Li et al. 2025 (arXiv 2512.06547); AReaL's prox_logp_method loglinear.
    Use: several optimizer steps per batch on stale data, without the forward pass; at one step it lets the
    clip bind: the ratio is (p / mu)^(1/k).
    Fails: assumes that the policy moved evenly over k versions; the engines' mismatch counts as movement.
    Weights and rejections see k - 1 of k parts of it, at k = 1 none; at k = 0 nothing is ever clipped.
    """
    parts = lags.clamp(min=1).to(policy.dtype)
    mixed = behavior + (1 - 1 / parts) * (policy - behavior)
    return mixed.where(lags > 0, policy)


PROXIMALS = {"forward": forward, "interpolated": interpolated}
"""[T] log-probs from those of a policy and of mu, [T] without gradient, and the staleness in versions [T]."""
