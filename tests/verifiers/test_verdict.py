"""The four outcomes and what a verdict may not say."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from verifiers.storable import storable_verdict
from verifiers.verdict import MAX_CREDITS, Outcome, Verdict, as_number


def test_a_fault_has_no_score_and_everything_else_has_one() -> None:
    assert Verdict(Outcome.FAULT, None).score is None
    with pytest.raises(ValueError, match="no score exactly when"):
        Verdict(Outcome.FAULT, 0.0)
    with pytest.raises(ValueError, match="no score exactly when"):
        Verdict(Outcome.WRONG, None)


def test_a_score_stands_between_0_and_1_and_a_correct_one_above_0() -> None:
    assert Verdict(Outcome.WRONG, 0.4).score == 0.4
    for score in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            Verdict(Outcome.WRONG, score)
    with pytest.raises(ValueError, match="above 0"):
        Verdict(Outcome.CORRECT, 0.0)


NO_NUMBERS: list[Any] = [
    True,
    False,
    "0.5",
    None,
    [0.5],
    float("nan"),
    float("inf"),
    1e300,
    10**400,
    numpy.bool_(True),
    numpy.float64("nan"),
]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:20])
def test_a_truth_value_a_text_or_a_number_out_of_range_is_no_number(value: Any) -> None:
    with pytest.raises(ValueError, match="shaping is .*, expected"):
        Verdict(Outcome.CORRECT, 1.0, shaping=value)
    with pytest.raises(ValueError, match="score"):
        Verdict(Outcome.CORRECT, value)
    with pytest.raises(ValueError, match="expected"):
        as_number(value, "score", 0.0, 1.0)


@pytest.mark.parametrize(
    "value", [0, 1, 0.5, Fraction(1, 3), Decimal("0.1"), numpy.float32(0.5), numpy.int64(1)]
)
def test_numbers_of_every_library_are_numbers(value: Any) -> None:
    assert as_number(value, "score", 0.0, 1.0) == float(value)
    assert Verdict(Outcome.WRONG, value, shaping=value).shaping == value


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:20])
def test_a_reward_of_a_turn_or_a_span_is_a_number_in_range(value: Any) -> None:
    with pytest.raises(ValueError, match=r"turn_rewards\[1\] is .*, expected|that no float holds"):
        Verdict(Outcome.WRONG, 0.0, turn_rewards=(0.5, value))
    with pytest.raises(ValueError, match=r"the reward of spans\[0\] is .*, expected|that no float holds"):
        Verdict(Outcome.WRONG, 0.0, spans=((0, 3, value),))


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ("abc", "expected a list"),
        ({0: 1}, "expected a list"),
        (3, "expected a list"),
        ((3,), "expected a list"),
        (((0, 3),), "expected \\(first character, end character, reward\\)"),
        (((0, 3, 0.5, 1),), "expected \\(first character, end character, reward\\)"),
        (((3, 3, 0.5),), "whose end is not behind"),
        (((4, 3, 0.5),), "whose end is not behind"),
        (((-1, 3, 0.5),), "whole numbers of characters"),
        (((0, 2.0, 0.5),), "whole numbers of characters"),
        (((False, True, 0.5),), "whole numbers of characters"),
        (((0, 10**30, 0.5),), "whole numbers of characters"),
        ([(0, 1, 0.0)] * (MAX_CREDITS + 1), "more than 10000"),
    ],
)
def test_a_span_is_two_places_and_a_reward(spans: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Verdict(Outcome.WRONG, 0.0, spans=spans)


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([("a", 1.0)], "expected an object of names and numbers"),
        ({"": 1.0}, "expected 1 to 100 printable characters"),
        ({3: 1.0}, "expected 1 to 100 printable characters"),
        ({"\ud800": 1.0}, "expected 1 to 100 printable characters"),
        ({"a" * 101: 1.0}, "expected 1 to 100 printable characters"),
        ({"a": True}, r"scores\['a'\] is True"),
        ({"a": float("nan")}, r"scores\['a'\] is nan"),
        ({str(i): 0.0 for i in range(101)}, "at most 100"),
    ],
)
def test_named_scores_are_names_and_numbers(scores: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Verdict(Outcome.WRONG, 0.0, scores=scores)


def test_named_scores_are_plain_numbers_and_change_neither_score_nor_shaping() -> None:
    found = Verdict(Outcome.WRONG, 0.0, scores={"format": numpy.float32(0.5), "right": 0})
    assert found.scores == {"format": 0.5, "right": 0.0} and type(found.scores["format"]) is float
    assert (found.score, found.shaping, Verdict(Outcome.WRONG, 0.0).scores) == (0.0, 0.0, {})
    assert storable_verdict(found) == found


def test_credits_are_plain_numbers_whatever_library_they_are_of() -> None:
    found = Verdict(
        Outcome.WRONG,
        0.0,
        turn_rewards=numpy.array([1, 2]),
        spans=[[numpy.int64(0), 3, Fraction(1, 2)]],
    )
    assert (found.turn_rewards, found.spans) == ((1.0, 2.0), ((0, 3, 0.5),))
    assert {type(part) for part in found.spans[0]} == {int, float}
    assert found.has_credits() and not Verdict(Outcome.WRONG, 0.0).has_credits()
