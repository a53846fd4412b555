"""A weight by lag, finish and source, to copy. In the recipe, with the share of each source, 1 for others:

importance_weight: {name: "./by_lag.py:by_lag", options: {shares: {hard: 2.0}}}
"""

from asyncrl.algorithms.inputs import bounded_ratio, per_token


def by_lag(inputs, options):
    """min(ratio, 2) / (1 + lag) times the source's share, [T]; 0 for a response that was cut off."""
    shares = [
        0.0 if finish == "length" else options.shares.get(source, 1.0)
        for finish, source in zip(inputs.finishes, inputs.sources, strict=True)
    ]
    ratios = bounded_ratio(inputs.proximal, inputs.behavior).clamp(max=2.0)
    return ratios / (1 + inputs.lags) * per_token(shares, inputs)
