"""Sources take turns by weight, and every one keeps its own order without gaps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.tasks.source_choice import BLOCK, Mixture, fair_shares

WEIGHTS = st.lists(st.floats(0.1, 10), min_size=1, max_size=6)


@given(WEIGHTS, st.integers(0, 9))
@settings(max_examples=50)
def test_each_source_gives_its_tasks_in_order_and_its_share_of_them(weights: list[float], seed: int):
    mixture = Mixture(weights, seed=seed)
    seen = [0] * len(weights)
    for position in range(2 * BLOCK):
        source, index = mixture.at(position)
        assert index == seen[source]
        seen[source] += 1
    for weight, count in zip(weights, seen, strict=True):
        assert abs(count - 2 * BLOCK * weight / sum(weights)) <= 2


def test_one_source_gives_every_task():
    assert [Mixture([3.0], seed=1).at(position) for position in (0, 999, 1000)] == [
        (0, 0),
        (0, 999),
        (0, 1000),
    ]


def test_any_position_can_be_asked_for_alone():
    weights = [1.0, 2.0, 0.5]
    one = Mixture(weights, seed=4)
    expected = [one.at(position) for position in range(5000)]
    assert [Mixture(weights, seed=4).at(position) for position in (4321, 17, 1000)] == [
        expected[position] for position in (4321, 17, 1000)
    ]
    assert [Mixture(weights, seed=5).at(position) for position in range(50)] != expected[:50]


def test_a_weight_that_gets_no_place_is_refused():
    with pytest.raises(ValueError, match=r"weight 0\.0001 of 1\.0001 is less than 1 in 2000 tasks"):
        Mixture([1.0, 0.0001], seed=0)


@pytest.mark.parametrize(
    ("sizes", "weights", "limit", "shares"),
    [
        ([100, 100], [1, 1], 10, [5, 5]),
        ([100, 100], [1, 3], 12, [3, 9]),
        # What a short source leaves free, the others fill.
        ([2, 100, 100], [1, 1, 1], 12, [2, 5, 5]),
        ([2, 4, 100], [1, 1, 1], 12, [2, 4, 6]),
        ([3, 4], [1, 1], 12, [3, 4]),
        ([10, 10, 10], [1, 1, 1], 8, [3, 3, 2]),
        ([10], [2], 4, [4]),
        ([5, 5], [1, 99], 4, [0, 4]),
        ([], [], 4, []),
    ],
)
def test_a_limit_is_shared_by_weight(
    sizes: list[int], weights: list[float], limit: int, shares: list[int]
) -> None:
    assert fair_shares(sizes, weights, limit) == shares
