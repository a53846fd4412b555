"""A weight by lag, finish and source, to copy, named `importance_weight: "./by_lag.py:by_lag"`."""

from asyncrl.algorithms.inputs import bounded_ratio, per_token

SHARES = {"hard": 2.0}
"""By source of the row; 1 for others."""


def by_lag(inputs, algorithm):
    """min(ratio, 2) / (1 + lag), twice that for rows of `hard`, [T]; 0 for a response that was cut off."""
    shares = [
        0.0 if finish == "length" else SHARES.get(source, 1.0)
        for finish, source in zip(inputs.finishes, inputs.sources, strict=True)
    ]
    ratios = bounded_ratio(inputs.proximal, inputs.behavior).clamp(max=2.0)
    return ratios / (1 + inputs.lags) * per_token(shares, inputs)
