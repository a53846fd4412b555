"""How many sequences a step really learns from: the effective sample size of its unclipped weights.

ESS = (sum w)^2 / sum w^2 (Kong 1992), as a share of the number of sequences; w is a sequence's product of
token ratios pi_prox / mu, over its tokens that count. Stale data make w heavy-tailed: few sequences then
carry the gradient, before rewards show it (VCPO, Huang et al. 2026, arXiv 2602.17616). By the staleness of a
sequence's oldest token that counts.

Shapes: N sequences of one micro-batch.
"""

import math

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs

LAGS = ("1", "2_3", "4_7", "8_15", "16_up")
"""Buckets of staleness, in versions; a lag of 0 is in none of them."""
AGES = ("0", *LAGS)
"""Staleness of a sequence's oldest token."""
SUMS = ("sequences", "weight", "weight_squared")
NUM_SUMS = len(AGES) * len(SUMS)
MAX_SEQUENCE_LOG_RATIO = 300.0
"""Where bounded_ratio's bound would make the largest weights equal, and the ESS of a collapse look whole: the
square of e^300 is finite in float64."""


def stale_buckets(lags: Tensor) -> Tensor:
    """[...] int64 index into LAGS; a lag below 1 counts as 1."""
    return lags.clamp(min=1).double().log2().floor().long().clamp(max=len(LAGS) - 1)


def oldest_lags(inputs: LossInputs, lags: Tensor, num_sequences: int) -> Tensor:
    """[T] -> [N]: the staleness of each sequence's oldest token that counts; 0 of one without any."""
    counted = torch.where(inputs.mask, lags, 0)
    return lags.new_zeros(num_sequences).scatter_reduce(0, inputs.sequence_ids, counted, "amax")


def sequence_sums(log_ratios: Tensor, oldest: Tensor, are_there: Tensor) -> Tensor:
    """[NUM_SUMS] float64 from [N] float64 sums of the sequences' log-ratios and [N] `oldest_lags`;
    `are_there` [N] is 1 of a sequence that has a token that counts, and 0 of others."""
    weights = are_there * log_ratios.clamp(-MAX_SEQUENCE_LOG_RATIO, MAX_SEQUENCE_LOG_RATIO).exp()
    ages = torch.where(oldest > 0, stale_buckets(oldest) + 1, 0)
    columns = torch.stack([are_there, weights, weights.square()], dim=1)
    return weights.new_zeros(len(AGES), len(SUMS)).index_add(0, ages, columns).flatten()


def effective_share(sums: Tensor) -> float:
    """ESS over the number of sequences, of [NUM_SUMS] over all micro-batches and ranks of a step; NaN of no
    sequence. 1 where all weigh the same."""
    return _share(*sums.view(len(AGES), len(SUMS)).sum(0).tolist())


def metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_SUMS] over all its micro-batches and ranks."""
    rows = sums.view(len(AGES), len(SUMS)).tolist()
    return {
        "sequence_effective_share": effective_share(sums),
        **{
            f"staleness_sequence_effective_share_lag_{age}": _share(*row)
            for age, row in zip(AGES, rows, strict=True)
        },
    }


def _share(count: float, total: float, squares: float) -> float:
    return total**2 / (count * squares) if count else math.nan
