"""What is expected of responses: the mean of longer ones, and twice the length where few were longer."""

from asyncrl.rollout.expected_load import REFRESHED_EVERY, WINDOW, ResponseLengths


def lengths_of(*ended: int) -> ResponseLengths:
    found = ResponseLengths()
    for length in ended:
        found.add(length)
    return found


def test_before_any_response_ended_a_quarter_of_the_limit_is_expected() -> None:
    assert lengths_of().expected(0, limit_tokens=1000) == 250
    assert lengths_of(10).expected(0, limit_tokens=1000) == 250


def test_a_new_response_is_expected_to_have_the_mean_and_one_that_is_longer_the_mean_of_longer_ones() -> None:
    known = lengths_of(*(8 * [100]), *(8 * [300]))
    assert known.expected(0, limit_tokens=1000) == 200
    assert known.expected(100, limit_tokens=1000) == 300
    assert known.expected(0, limit_tokens=150) == 150


def test_a_response_longer_than_almost_all_is_expected_to_become_twice_as_long() -> None:
    known = lengths_of(*(20 * [100]), 5000)
    assert known.expected(400, limit_tokens=1000) == 800
    assert known.expected(800, limit_tokens=1000) == 1000
    assert known.expected(1000, limit_tokens=1000) == 1000


def test_only_recent_responses_count() -> None:
    known = lengths_of(*(50 * [1000]), *((WINDOW + REFRESHED_EVERY) * [10]))
    assert known.expected(0, limit_tokens=2000) == 10
