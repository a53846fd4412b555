"""The arithmetic of paired comparisons, against enumeration and hand values."""

import itertools
import math
import random

import pytest

from tests.benchmarks.paired import MOST_PAIRS, holm, interval, mean_height, sign_flip_p


def enumerated_p(differences: list[float]) -> float:
    flips = list(itertools.product((1, -1), repeat=len(differences)))
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in flips]
    return sum(total >= observed - 1e-12 for total in sums) / len(flips)


def test_the_permutation_test_is_the_share_of_all_sign_flips_that_are_as_extreme():
    source = random.Random(0)
    for size in range(1, 9):
        differences = [source.gauss(0.3, 1.0) for _ in range(size)]
        assert sign_flip_p(differences) == enumerated_p(differences)


def test_ten_pairs_of_one_sign_have_the_smallest_p_that_there_is():
    assert sign_flip_p([0.1 * n for n in range(1, 11)]) == 2 / 1024
    assert sign_flip_p([-0.3] * 10) == 2 / 1024


def test_a_sum_that_rounding_makes_smaller_is_as_extreme_all_the_same():
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floating point; both orders are the observed sum.
    assert sign_flip_p([0.1, 0.2, 0.3]) == sign_flip_p([0.3, 0.2, 0.1]) == 2 / 8


def test_pairs_without_a_difference_say_nothing():
    assert sign_flip_p([0.0] * 10) == 1.0


@pytest.mark.parametrize("count", [0, MOST_PAIRS + 1])
def test_no_pairs_and_too_many_to_enumerate_are_refused(count: int):
    with pytest.raises(ValueError, match=f"{count} pairs"):
        sign_flip_p([1.0] * count)


def test_holms_correction_by_hand():
    # Sorted .01 .02 .03 .04, times 4 3 2 1: .04 .06 .06 .04, and never below a smaller one's.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_single_comparison_is_not_corrected():
    assert holm([0.04]) == [0.04]


def test_the_height_of_a_curve_between_two_places_cuts_its_trapezoids_there():
    curve = [(8, 0.4), (0, 0.0), (16, 0.8)]
    assert mean_height(curve, 0, 16) == pytest.approx(0.4)
    # From 4 (0.2) by 8 (0.4) to 16 (0.8).
    assert mean_height(curve, 4, 16) == pytest.approx((4 * 0.3 + 8 * 0.6) / 12)
    assert mean_height([(0, 1.0), (10, 0.0)], 2, 4) == pytest.approx(0.7)


def test_a_curve_that_ends_early_has_no_height():
    with pytest.raises(ValueError, match="covers 0 to 8; expected 0 to 16"):
        mean_height([(0, 0.1), (8, 0.2)], 0, 16)


def test_the_interval_of_ten_values_is_students():
    values = [float(n) for n in range(10)]
    mean, width = interval(values)
    assert mean == 4.5
    assert width == pytest.approx(2.262157 * math.sqrt(55 / 6) / math.sqrt(10), rel=1e-6)
