"""Sums by weight: the same float whatever the parts and their order."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.weighted_sum import weighted_sum

HUNDREDTHS = st.integers(-1000, 1000).map(lambda number: number / 100)


@pytest.mark.parametrize(
    ("pairs", "divisor", "total"),
    [
        ([(1.0, 0.7), (1.0, 0.2), (1.0, 0.1)], 1.0, 1.0),
        ([(1.0, 0.8), (-1.0, 0.1)], 1.0, 0.7),
        ([(0.1, 1.0), (0.2, 1.0), (0.3, 0.0)], 0.6, 0.5),
        ([(3, 1), (1, 0)], 4, 0.75),
        ([], 1.0, 0.0),
        ([(1e308, 100.0)], 1.0, math.inf),
        ([(1.0, math.inf), (1.0, 0.5)], 1.0, math.inf),
    ],
)
def test_numbers_are_taken_as_they_are_written(
    pairs: list[tuple[float, float]], divisor: float, total: float
) -> None:
    assert weighted_sum(pairs, divisor=divisor) == total


def test_a_sum_with_nan_is_nan() -> None:
    assert math.isnan(weighted_sum([(1.0, math.nan), (1.0, 0.5)]))


@given(st.lists(st.tuples(HUNDREDTHS, HUNDREDTHS), max_size=8), st.randoms(use_true_random=False))
def test_equal_parts_in_any_order_have_one_sum(
    pairs: list[tuple[float, float]], chance: random.Random
) -> None:
    wanted = sum((Fraction(str(a)) * Fraction(str(b)) for a, b in pairs), Fraction())
    chance.shuffle(pairs)
    assert weighted_sum(pairs) == float(wanted)
