"""Buckets of staleness that a step's numbers are given by, in versions."""

from torch import Tensor

LAGS = ("1", "2_3", "4_7", "8_15", "16_up")
"""Buckets of what is stale; a lag of 0 is none of them."""


def stale_buckets(lags: Tensor) -> Tensor:
    """[...] int64 index into LAGS; a lag below 1 counts as 1."""
    return lags.clamp(min=1).double().log2().floor().long().clamp(max=len(LAGS) - 1)
