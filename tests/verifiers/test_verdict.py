"""The four outcomes and what a verdict may not say."""

import pytest

from verifiers.verdict import Outcome, Verdict


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


def test_shaping_is_recorded_apart_from_the_score() -> None:
    verdict = Verdict(Outcome.CORRECT, 1.0, shaping=-0.5)
    assert (verdict.score, verdict.shaping) == (1.0, -0.5)
    with pytest.raises(ValueError, match="finite"):
        Verdict(Outcome.CORRECT, 1.0, shaping=float("inf"))


def test_an_outcome_is_its_word() -> None:
    assert [outcome.value for outcome in Outcome] == ["correct", "wrong", "no_answer", "fault"]
