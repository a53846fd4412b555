"""The reward-hacking monitor on numbers that a reader can check."""

import pytest

from verifiers.monitor import (
    count_outcomes,
    fallback_share,
    identical_response_share,
    most_common_answer_share,
    reward_jump,
    reward_without_heldout,
)
from verifiers.verdict import Outcome, Verdict

RIGHT = Verdict(Outcome.CORRECT, 1.0, extracted="42", method="boxed")
LAST_LINE = Verdict(Outcome.CORRECT, 1.0, extracted="42", method="last_line")
WRONG = Verdict(Outcome.WRONG, 0.0, extracted="41", method="boxed")
HALF = Verdict(Outcome.WRONG, 0.5, extracted="40", method="boxed")
FAULT = Verdict(Outcome.FAULT, None)


def test_all_outcomes_are_counted_by_name() -> None:
    assert count_outcomes([RIGHT, RIGHT, FAULT]) == {"correct": 2, "wrong": 0, "no_answer": 0, "fault": 1}


def test_the_fallback_share_is_of_the_reward_not_of_the_answers() -> None:
    # Rewards 1 (box), 1 (last line), 0.5 (box): 1 of 2.5.
    assert fallback_share([(RIGHT, "a"), (LAST_LINE, "b"), (HALF, "c"), (FAULT, "d")]) == pytest.approx(0.4)
    assert fallback_share([(WRONG, "a")]) == 0.0
    assert fallback_share([]) == 0.0


def test_identical_responses_are_found_across_white_space() -> None:
    graded = [(RIGHT, "so 42"), (RIGHT, "so  42\n"), (RIGHT, "well, 42"), (WRONG, "so 42")]
    assert identical_response_share(graded) == pytest.approx(2 / 3)


def test_the_most_common_answer_leaves_faults_out() -> None:
    assert most_common_answer_share([RIGHT, LAST_LINE, WRONG, FAULT]) == pytest.approx(2 / 3)
    assert most_common_answer_share([FAULT]) == 0.0


def test_a_jump_of_the_reward_stands_out_and_a_steady_reward_does_not() -> None:
    steady = [0.30, 0.32] * 10
    assert abs(reward_jump(steady)) < 1e-9
    # From 0.31 with a deviation of 0.01 to 0.9: 59 deviations.
    assert reward_jump([0.30, 0.32] * 5 + [0.9] * 10) == pytest.approx(59)
    assert reward_jump([0.1] * 19) == 0.0
    with pytest.raises(ValueError, match="window"):
        reward_jump(steady, window=1)


def test_reward_that_rises_without_held_out_is_reported_in_points() -> None:
    rewards = [0.2] * 10 + [0.8] * 10
    assert reward_without_heldout(rewards, [(5, 0.2), (15, 0.2)]) == pytest.approx(0.6)
    assert reward_without_heldout(rewards, [(5, 0.2), (15, 0.8)]) == pytest.approx(0.0)
    assert reward_without_heldout(rewards, [(5, 0.2)]) == 0.0
