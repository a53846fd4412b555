"""Importance weights on ratios that can be worked out by hand."""

import math
from collections.abc import Callable

import pytest
from fakes.loss_inputs import make_inputs

from asyncrl.algorithms.weights import masked, sequence_masked, sequence_truncated, truncated
from asyncrl.recipe import Algorithm

TOKENS = {"current": [-1.0, -1.0, -2.0], "behavior": [-1.5, -2.0, -1.0]}
"""Ratios e^0.5 = 1.65, e^1 = 2.72 and e^-1 = 0.37."""
SEQUENCES = {"current": [-1.0] * 4, "behavior": [-1.5, -0.8, -2.0, -2.0], "sequence_ids": [0, 0, 1, 1]}
"""Products e^0.5 e^-0.2 = e^0.3 and e^1 e^1."""
PAIR = {"current": [-1.0, -2.0], "behavior": [-1.5, -1.0]}
"""Ratios e^0.5 and e^-1 = 0.37; their product e^-0.5 = 0.61."""
LONG = {"current": [-1.0] * 500, "behavior": [-2.0] * 500}


@pytest.mark.parametrize(
    ("weight", "settings", "inputs", "wanted"),
    [
        (truncated, {}, TOKENS, [math.exp(0.5), 2.0, math.exp(-1)]),
        (masked, {"mask_high": 2.0}, TOKENS, [math.exp(0.5), 0.0, 0.0]),
        (sequence_truncated, {}, SEQUENCES, [math.exp(0.3)] * 2 + [2.0] * 2),
        (
            sequence_masked,
            {"importance_weight": "sequence_masked"},
            SEQUENCES,
            [math.exp(0.3)] * 2 + [0.0] * 2,
        ),
        (truncated, {"importance_weight": {"name": "truncated", "floor": 0.7}}, PAIR, [math.exp(0.5), 0.7]),
        (sequence_truncated, {"importance_weight": {"name": "truncated", "floor": 0.7}}, PAIR, [0.7, 0.7]),
        # The product over a very long sequence stays finite.
        (
            sequence_truncated,
            {"importance_weight": {"name": "truncated", "cap": 1e30}},
            LONG,
            [math.exp(20)] * 500,
        ),
    ],
)
def test_a_weight_is_its_ratio_or_product_within_its_bounds(
    weight: Callable, settings: dict, inputs: dict, wanted: list[float]
):
    assert weight(make_inputs(**inputs), Algorithm(**settings)).tolist() == pytest.approx(wanted)
