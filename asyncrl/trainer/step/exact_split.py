"""Mismatch of the engines and staleness apart, token by token, also of stale tokens.

pi_prox / mu_v = (pi_v / mu_v) x (pi_prox / pi_v), where v is the version that sampled the token, mu_v the
server that served it and pi_v the trainer's own policy of that version: the first factor is that of the
engines alone, the second that of the steps since v (arXiv 2605.12070). At staleness 0 pi_v is pi_prox and the
second factor 1. Tokens that were sampled on a cache of an older version belong to no single policy: their
first factor is told apart. KL by the estimator k3, over tokens of mu_v: that of staleness takes them for
tokens of pi_v.

Shapes: T response tokens of one micro-batch.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs, bounded_ratio
from asyncrl.trainer.packing.batch import MicroBatch

SUMS = (*("tokens", "unknown", "plain", "plain_k3", "continued", "continued_k3", "stale", "stale_k3"),)
"""Tokens that count; those whose version is not kept; then by kind the others and their k3. Plain: sampled on
a cache of one version."""
NUM_SUMS = len(SUMS)
MAXIMA = ("exact_mismatch_ratio", "exact_staleness_ratio")


def token_sums(inputs: LossInputs, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """([NUM_SUMS] float64, [len(MAXIMA)] float64) over the tokens that count, 0 without `inputs.sampled`."""
    sampled = inputs.sampled
    if sampled is None:
        zeros = inputs.proximal.new_zeros(NUM_SUMS + len(MAXIMA), dtype=torch.float64)
        return zeros[:NUM_SUMS], zeros[NUM_SUMS:]
    policy, behavior, is_counted = inputs.policy(), inputs.behavior, inputs.mask
    is_stale = micro.lags > 0
    own = torch.where(is_stale, sampled, policy)
    is_known = own.isfinite() & is_counted
    own = torch.where(is_known, own, behavior)
    is_continued = micro.are_continued & is_known
    is_plain, is_stale = is_known & ~is_continued, is_stale & is_known
    mismatch, of_engines = _k3(own, behavior)
    drift, of_steps = _k3(policy, own)
    sums = [is_counted.double(), (is_counted & ~is_known).double()]
    for kind, values in ((is_plain, mismatch), (is_continued, mismatch), (is_stale, drift)):
        sums += [kind.double(), torch.where(kind, values, 0.0)]
    zero = of_engines.new_zeros(1)
    largest = [
        torch.cat([torch.where(kind, ratio, 0.0), zero]).max()
        for ratio, kind in ((of_engines, is_plain), (of_steps, is_stale))
    ]
    return torch.stack(sums).sum(1), torch.stack(largest)


def metrics(sums: Tensor, largest: dict[str, float]) -> dict[str, float]:
    """Columns of a step from [NUM_SUMS] over all micro-batches and ranks; none where nothing was split."""
    total = dict(zip(SUMS, sums.tolist(), strict=True))
    if not total["tokens"]:
        return {}
    return {
        "mismatch_exact_kl": _mean(total, "plain"),
        "mismatch_exact_ratio_max": largest["exact_mismatch_ratio"] if total["plain"] else math.nan,
        "mismatch_exact_continued_kl": _mean(total, "continued"),
        "staleness_exact_kl": _mean(total, "stale"),
        "staleness_exact_ratio_max": largest["exact_staleness_ratio"] if total["stale"] else math.nan,
        "staleness_unknown_share": total["unknown"] / total["tokens"],
    }


def _mean(total: dict[str, float], kind: str) -> float:
    return total[f"{kind}_k3"] / total[kind] if total[kind] else math.nan


def _k3(policy: Tensor, sampler: Tensor) -> tuple[Tensor, Tensor]:
    """[T] float64 each: r - 1 - ln r of r = policy / sampler, and r."""
    ratio = bounded_ratio(policy, sampler).double()
    return ratio - 1 - (policy - sampler).double(), ratio
