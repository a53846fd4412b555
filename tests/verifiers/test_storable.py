"""The border where text of programs and models enters, alone and in front of a whole pool."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.pool import VerifierPool
from verifiers.storable import MAX_WORDS_CHARACTERS, storable, storable_verdict
from verifiers.verdict import Outcome, Verdict

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


async def test_a_fault_says_the_line_of_the_verifier(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(VERIFIER)

    line = VERIFIER.splitlines().index(next(row for row in VERIFIER.splitlines() if "ud800" in row)) + 1
    async with VerifierPool(num_workers=1, timeout_seconds=30) as pool:
        for name in ("Odd", "Fast", "Waits"):
            verdict = await pool.verify(f"./odd.py:{name}", {}, "raise", "", folder=tmp_path)
            assert verdict.detail.endswith(f"odd.py:{line})")
