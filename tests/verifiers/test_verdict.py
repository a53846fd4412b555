"""The four outcomes, what a verdict may not say, the border where text of programs and models enters, and the
reward-hacking monitor on numbers that a reader can check."""

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.monitor import (
    count_outcomes,
    fallback_share,
    identical_response_share,
    most_common_answer_share,
    reward_jump,
    reward_without_heldout,
)
from verifiers.pool import VerifierPool
from verifiers.storable import MAX_WORDS_CHARACTERS, storable, storable_verdict
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
    *(True, False, "0.5", None, [0.5], float("nan"), float("inf"), 1e300, 10**400),
    *(numpy.bool_(True), numpy.float64("nan")),
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


ANYTHING = st.text(st.characters(exclude_categories=()))
"""Surrogates, NUL and control characters among it."""


@given(ANYTHING, st.integers(0, 50))
def test_whatever_passes_is_utf_8_without_nul_and_bounded(text: str, limit: int) -> None:
    kept = storable(text, limit=limit)
    kept.encode("utf-8")
    assert "\x00" not in kept
    assert len(kept) <= limit + len("... ( more characters)") + len(str(len(text)))
    assert storable(kept, limit=len(kept)) == kept


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00")))
def test_text_that_is_fine_passes_as_it_is(text: str) -> None:
    assert storable(text) == text


def test_what_is_replaced_and_what_is_cut_can_be_told() -> None:
    assert storable("a\ud800b\x00c\ud83d\ude00") == "a\ufffdb\ufffdc\ufffd\ufffd"
    assert storable("abcdef", limit=2) == "ab... (4 more characters)"


@given(ANYTHING, ANYTHING, ANYTHING)
def test_a_verdict_with_any_text_is_storable(extracted: str, detail: str, method: str) -> None:
    verdict = storable_verdict(Verdict(Outcome.WRONG, 0.0, extracted=extracted, detail=detail, method=method))
    assert json.loads(json.dumps([verdict.extracted, verdict.detail])) == [verdict.extracted, verdict.detail]
    for text in (verdict.extracted or "", verdict.detail, verdict.method):
        text.encode("utf-8")


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_extract_that_has_no_words_is_a_fault_with_the_reason() -> None:
    verdict = storable_verdict(Verdict(Outcome.WRONG, 0.0, extracted=Unreadable()))  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.FAULT and "no words" in verdict.detail


def test_numbers_and_extracts_of_other_types_become_plain() -> None:
    found = Verdict(Outcome.CORRECT, Fraction(1, 2), extracted=7)  # type: ignore[arg-type]
    verdict = storable_verdict(found)
    assert (verdict.score, verdict.extracted) == (0.5, "7")
    assert type(verdict.score) is float


VERIFIER = """
import sys
from fractions import Fraction
from verifiers.verdict import Outcome, Verdict

class Odd:
    def parse_reference(self, raw): return raw
    def verify(self, response, reference):
        if response == "raise": raise ValueError("\\ud800\\x00" + "x" * 10**6)
        if response == "exit": sys.exit(3)
        if response == "fraction": return Verdict(Outcome.CORRECT, Fraction(1, 2))
        if response == "bytes": return Verdict(Outcome.WRONG, 0.0, detail=b"\\xff")
        if response == "none": return None
        if response == "true": return Verdict(Outcome.CORRECT, True)
        if response == "text": return Verdict(Outcome.CORRECT, 1.0, shaping="0.5")
        if response == "huge": return Verdict(Outcome.CORRECT, 1.0, shaping=10**400)
        if response == "changed":
            verdict = Verdict(Outcome.CORRECT, 1.0)
            object.__setattr__(verdict, "shaping", True)
            return verdict
        if response == "spans": return Verdict(Outcome.WRONG, 0.0, spans=[(0, 5, 0.5)], turn_rewards=[1])
        if response == "span": return Verdict(Outcome.WRONG, 0.0, spans=[(0, 5, "0.5")])
        if response == "moved":
            verdict = Verdict(Outcome.CORRECT, 1.0)
            object.__setattr__(verdict, "spans", ((2, 1, 0.5),))
            return verdict
        return Verdict(Outcome.WRONG, 0.0, extracted=response, detail=response * 3, method=response)

class Fast(Odd):
    def verify_fast(self, response, reference): return self.verify(response, reference)

class Waits(Odd):
    async def verify_async(self, response, reference): return self.verify(response, reference)
"""

CASES = {
    "raise": ("fault", "ValueError: \ufffd\ufffdxxx"),
    "exit": ("fault", "SystemExit: 3"),
    "fraction": ("correct", ""),
    "bytes": ("wrong", "b'\\xff'"),
    "none": ("fault", "returned NoneType"),
    "true": ("fault", "score is True, expected a number in [0, 1]"),
    "text": ("fault", "shaping is '0.5', expected a number in [-1e+06, 1e+06]"),
    "huge": ("fault", "shaping is a number that no float holds"),
    "changed": ("fault", "shaping is True, expected a number"),
    "spans": ("wrong", ""),
    "span": ("fault", "the reward of spans[0] is '0.5', expected a number"),
    "moved": ("fault", "whose end is not behind its first character"),
    "\ud800\x00": ("wrong", "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"),
    "y" * 100_001: ("wrong", "more characters"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["Odd", "Fast", "Waits"])
async def test_every_way_through_the_pool_gives_storable_verdicts(tmp_path: Path, name: str) -> None:
    (tmp_path / "odd.py").write_text(VERIFIER)

    async with VerifierPool(num_workers=1, timeout_seconds=30) as pool:
        found = [
            await pool.verify(f"./odd.py:{name}", {}, response, "", folder=tmp_path) for response in CASES
        ]
    responses = dict(zip(CASES, found, strict=True))
    for response, (outcome, said) in CASES.items():
        verdict = responses[response]
        assert verdict.outcome.value == outcome, verdict.detail
        assert said in verdict.detail
        assert len(verdict.detail) < MAX_WORDS_CHARACTERS + 100
        for text in (verdict.detail, verdict.method, verdict.extracted or ""):
            assert storable(text) == text


@pytest.mark.exhaustive
async def test_a_fault_says_the_line_of_the_verifier(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(VERIFIER)

    line = VERIFIER.splitlines().index(next(row for row in VERIFIER.splitlines() if "ud800" in row)) + 1
    async with VerifierPool(num_workers=1, timeout_seconds=30) as pool:
        for name in ("Odd", "Fast", "Waits"):
            verdict = await pool.verify(f"./odd.py:{name}", {}, "raise", "", folder=tmp_path)
            assert verdict.detail.endswith(f"odd.py:{line})")


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


def test_reward_that_rises_without_held_out_is_reported_in_points() -> None:
    rewards = [0.2] * 10 + [0.8] * 10
    assert reward_without_heldout(rewards, [(5, 0.2), (15, 0.2)]) == pytest.approx(0.6)
    assert reward_without_heldout(rewards, [(5, 0.2), (15, 0.8)]) == pytest.approx(0.0)
    assert reward_without_heldout(rewards, [(5, 0.2)]) == 0.0
