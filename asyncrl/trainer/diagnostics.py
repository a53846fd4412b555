"""What one step says about the policy: sums over tokens, added over micro-batches and ranks, then divided.

Tokens of lag 0 show the pure train-inference mismatch; tokens of lag >= 1 add staleness to it; tokens of lag
0 that were sampled over the keys and values of an older version (a publish in place) are neither. Never
mixed. Shapes: T response tokens of one micro-batch.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.losses import LossInputs, bounded_ratio

SUMS = (
    "loss",
    "denominator",
    "tokens",
    "nonfinite",
    "packed",
    "entropy",
    "ratio",
    "capped",
    "lag",
    "fresh",
    "fresh_k1",
    "fresh_k3",
    "stale",
    "stale_k1",
    "stale_k3",
    "continued",
    "continued_k1",
    "continued_k3",
)
MAXIMA = ("ratio", "lag", "fresh_log_ratio")


def micro_batch_sums(
    inputs: LossInputs,
    *,
    loss: Tensor,
    denominator: Tensor,
    entropies: Tensor,
    lags: Tensor,
    are_continued: Tensor,
    num_packed: int,
    importance_cap: float,
) -> tuple[Tensor, Tensor]:
    """([len(SUMS)], [len(MAXIMA)]) float64, over the tokens that count."""
    mask = inputs.mask
    num_tokens = mask.sum()
    proximal, behavior = inputs.proximal[mask].double(), inputs.behavior[mask].double()
    log_ratio, ratio, lags = proximal - behavior, bounded_ratio(proximal, behavior), lags[mask].double()
    stale = (lags > 0).double()
    continued = (1 - stale) * are_continued[mask].double()
    fresh = 1 - stale - continued
    # Both estimate KL(mu || pi) from tokens of mu: k1 = -log r is unbiased, k3 = r - 1 - log r also never
    # negative and calmer (Schulman 2020, joschu.net/blog/kl-approx.html).
    k1, k3 = -log_ratio, ratio - 1 - log_ratio
    rows = torch.stack([entropies[mask].double(), ratio, (ratio > importance_cap).double(), lags])
    kinds = [torch.stack([kind, k1 * kind, k3 * kind]) for kind in (fresh, stale, continued)]
    counts = torch.stack([loss.double(), denominator.double(), num_tokens.double(), (~mask).sum().double()])
    sums = torch.cat(
        [
            counts,
            counts.new_tensor([float(num_packed)]),
            torch.cat([rows, *kinds]).sum(1),
        ]
    )
    zero = counts.new_zeros(1)
    largest = [torch.cat([values, zero]).max() for values in (ratio, lags, log_ratio.abs() * fresh)]
    return sums, torch.stack(largest)


def step_diagnostics(sums: Tensor, maxima: Tensor) -> dict[str, float]:
    """Metrics of one step from sums and maxima over all its micro-batches and ranks."""
    total = dict(zip(SUMS, sums.tolist(), strict=True))
    largest = dict(zip(MAXIMA, maxima.tolist(), strict=True))

    def mean(name: str, count: str, *, empty: float = math.nan) -> float:
        # The mean of no tokens is no number: a zero would read as a perfect match.
        return total[name] / total[count] if total[count] else empty

    return {
        "loss": mean("loss", "denominator", empty=0.0),
        "num_tokens": total["tokens"],
        "num_packed_tokens": total["packed"],
        "nonfinite_tokens": total["nonfinite"],
        "entropy": mean("entropy", "tokens"),
        "mean_importance_ratio": mean("ratio", "tokens"),
        "max_importance_ratio": largest["ratio"],
        "capped_share": mean("capped", "tokens"),
        "staleness_mean": mean("lag", "tokens"),
        "staleness_max": largest["lag"],
        "mismatch_kl": mean("fresh_k3", "fresh"),
        "mismatch_kl_k1": mean("fresh_k1", "fresh"),
        "mismatch_logprob_max": largest["fresh_log_ratio"],
        "continued_share": mean("continued", "tokens"),
        "continued_kl": mean("continued_k3", "continued"),
        "staleness_kl": mean("stale_k3", "stale"),
        "staleness_kl_k1": mean("stale_k1", "stale"),
    }
