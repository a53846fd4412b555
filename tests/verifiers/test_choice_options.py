"""Rows that say their options: the text after a letter must be that option's, whatever it is."""

from typing import Any

import pytest

from verifiers.choice import ChoiceVerifier
from verifiers.dataset import DataReport, GoldRow, check_rows
from verifiers.pool import VerifierPool

OPTIONS = {
    "A": "True", "B": "It is not correct", "C": "E. coli", "D": "$\\frac{1}{2}$", "E": "Both A and B",
}  # fmt: skip
CHOICE = ChoiceVerifier()


def outcome(gold: Any, answer: str) -> str:
    return CHOICE.verify(f"\\boxed{{{answer}}}", CHOICE.parse_reference(gold)).outcome.value


@pytest.mark.parametrize("letter", OPTIONS)
def test_a_letter_with_its_own_text_is_right_and_with_any_other_text_wrong(letter: str) -> None:
    gold = {"letter": letter, "options": OPTIONS}
    assert outcome(gold, letter) == outcome(gold, f"\\text{{({letter})}}") == "correct"
    for known, text in OPTIONS.items():
        expected = "correct" if known == letter else "wrong"
        for answer in (
            f"{letter}. {text}",
            f"\\textbf{{({letter})}} {text}",
            f"\\text{{{letter}) {text.upper()}}}",
        ):
            if answer != f"\\text{{{letter}) {text.upper()}}}" or "$" not in text:
                assert outcome(gold, answer) == expected, answer
        if known != letter:
            assert outcome(gold, known) == outcome(gold, f"{known}. {text}") == "wrong"
    for text in ("is wrong", "Paris", "or C", "0.3"):
        assert outcome(gold, f"{letter}. {text}") == "wrong"
    assert outcome(gold, OPTIONS[letter]) == "wrong"


def test_a_formula_may_be_written_in_another_way() -> None:
    gold = {"letter": "D", "options": OPTIONS}
    for text in ("\\frac12", "0.5", "1/2", "\\dfrac{1}{2}"):
        assert outcome(gold, f"(D) {text}") == "correct"
        assert outcome(gold, f"(C) {text}") == "wrong"
    assert outcome(gold, "(D) 0.51") == "wrong"


def test_options_may_be_a_list_and_letters_several() -> None:
    gold = {"letter": ["A", "C"], "options": ["one", "two", "three"]}
    assert outcome(gold, "C and A") == "correct"
    assert outcome(gold, "A") == outcome(gold, "A, B, C") == outcome(gold, "A, D") == "wrong"


@pytest.mark.parametrize(
    ("gold", "complaint"),
    [
        ({"letter": "F", "options": OPTIONS}, "a letter of 'options'"),
        ({"letter": "A"}, "'letter' and 'options'"),
        ({"letter": "A", "options": {}}, "the text of each letter"),
        ({"letter": "A", "options": "A. one"}, "the text of each letter"),
        ({"letter": "A", "options": {"A": "one", "a": "two"}}, "the text of each letter"),
        ({"letter": "A", "options": {"Z": "one"}}, "the text of each letter"),
        ({"letter": "A", "options": ["x"] * 11}, "the text of each letter"),
        ({"letter": 1, "options": OPTIONS}, "one or more of the letters"),
    ],
)
def test_a_gold_with_options_that_cannot_be_read_is_refused(gold: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CHOICE.parse_reference(gold)


async def check(gold: object) -> DataReport:
    async with VerifierPool() as pool:
        return await check_rows([GoldRow("data.jsonl:1", gold, "choice", {})], pool)


async def test_verify_data_tries_each_letter_and_each_text() -> None:
    report = await check({"letter": "B", "options": OPTIONS})
    assert report.is_clean, report
    assert report.num_checked == 1
    assert report.num_mutants == {"another letter": 4, "another option's text": 4}
    # Two options with one text are a broken row.
    report = await check({"letter": "B", "options": {"A": "0.5", "B": "1/2"}})
    assert report.accepted_mutants == [
        "data.jsonl:1: 'B) 0.5' (another option's text) passes for the gold 'B'"
    ]
