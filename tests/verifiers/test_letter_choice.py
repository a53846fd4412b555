"""Choices: letters as they are written, and letters with the texts of their options."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.choice import ChoiceVerifier
from verifiers.dataset import DataReport, GoldRow, check_rows
from verifiers.letter_choice import chosen_letters
from verifiers.math.verifier import MathVerifier
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

LETTERS = "ABCDE"
CHOICE = ChoiceVerifier()
MATH = MathVerifier()

LETTER = st.sampled_from(LETTERS)
LABELS = st.sampled_from(("{}.", "{})", "{}:", "({})", "[{}]", "\\textbf{{({})}}", "\\text{{{})}}", "({}):"))
STYLES = st.sampled_from(("{}", "\\text{{{}}}", "\\textit{{{}}}", "\\mathrm{{{}}}", "**{}**", "${}$"))
SUBJECTS = st.sampled_from(
    ("", "it ", "this ", "that ", "which ", "the option ", "my first choice ", "clearly ")
)
VERBS = st.sampled_from(("is ", "was ", "seems ", "would be ", "has been ", "looks ", "can be ", "'s ", ""))
NEGATIONS = st.sampled_from(("not ", "never ", "no longer ", "hardly ", "far from ", "anything but ", ""))
JUDGEMENTS = st.sampled_from(
    ("correct", "right", "true", "valid", "accurate", "the answer", "incorrect", "wrong", "false", "invalid",
     "impossible", "unlikely", "a mistake", "ruled out", "eliminated", "rejected")
)  # fmt: skip
BAD = tuple("incorrect wrong false invalid impossible unlikely mistake ruled elim reject".split())
CONNECTORS = st.sampled_from(
    (
        "", "or ", "and ", "but ", "maybe ", "rather ", "actually ", "no, ", "-> ", "→ ", "\\to ", "; ",
        ", ", "/ ", "| ", "I mean ", "wait, ", "so ", "better ", "instead ", "not this, ", "Paris or ",
        "12 or ", "sorry, ", "& ", "= ",
    )
)  # fmt: skip
MENTIONS = st.sampled_from(
    ("{}", "({})", "{}.", "{})", "option {}", "the answer is {}", "\\text{{{}}}", "choose {}")
)


def outcomes(letter: str, answer: str) -> set[Outcome]:
    """Of both verifiers that know letters."""
    response = f"so \\boxed{{{answer}}}"
    return {
        verifier.verify(response, verifier.parse_reference(letter)).outcome for verifier in (CHOICE, MATH)
    }


@given(LETTER, LABELS, STYLES, SUBJECTS, VERBS, NEGATIONS, JUDGEMENTS)
@settings(max_examples=400)
def test_a_letter_with_a_claim_about_it_is_not_chosen(
    letter: str, label: str, style: str, subject: str, verb: str, negation: str, judgement: str
) -> None:
    claim = f"{subject}{verb}{negation}{judgement}".strip()
    if claim == "right" or (not negation and not verb and not judgement.startswith(BAD)):
        return
    assert outcomes(letter, f"{label.format(letter)} {style.format(claim)}") == {Outcome.WRONG}


@given(LETTER, LETTER, LABELS, STYLES, CONNECTORS, MENTIONS)
@settings(max_examples=400)
def test_a_letter_with_another_letter_is_not_chosen(
    letter: str, other: str, label: str, style: str, connector: str, mention: str
) -> None:
    if other == letter:
        return
    text = style.format(f"{connector}{mention.format(other)}")
    assert outcomes(letter, f"{label.format(letter)} {text}") == {Outcome.WRONG}


TEXTS = st.sampled_from(
    (
        "Paris", "12", "\\frac{1}{2}", "x = 5", "12 apples", "Newton's second law", "10 or 12",
        "A red cat", "5 \\text{ A}", "None of the above", "Both A and C", "Neither B nor D",
        "I and II only", "2:3", "\\sqrt{2} + 1", "F = ma", "$5", "Cannot be determined", "Right triangle",
        "Red, white and blue", "Greater than 5", "a^2 + b^2", "May", "",
    )
)  # fmt: skip


@given(LETTER, LABELS, TEXTS, st.sampled_from(("{}", "\\text{{{}}}", "${}$")))
@settings(max_examples=300)
def test_a_letter_with_the_text_of_an_option_is_chosen(
    letter: str, label: str, text: str, style: str
) -> None:
    answer = style.format(f"{label.format(letter)} {text}")
    assert outcomes(letter, answer) == {Outcome.CORRECT}
    assert outcomes("E" if letter != "E" else "A", answer) == {Outcome.WRONG}


@given(st.sets(LETTER, min_size=1), st.sampled_from((", ", " and ", " & ", "; ", ",", " / ")), st.booleans())
@settings(max_examples=200)
def test_several_letters_are_chosen_as_they_are_written(chosen: set[str], between: str, bare: bool) -> None:
    written = [letter if bare else f"({letter})" for letter in sorted(chosen, reverse=True)]
    assert chosen_letters(between.join(written), LETTERS) == chosen
    assert chosen_letters(f"The correct options are {between.join(written)}.", LETTERS) == chosen


@pytest.mark.parametrize(
    "text",
    [
        "E. coli", "\\textit{E. coli}", "e.g. 4", "A. thaliana", "not B", "all but B", "\\cancel{B}",
        "\\sout{B}", "\\neg B", "B?", "B - C", "B because it holds", "A) 1, B) 2", "a cat", "AA", "B2",
        "BAD luck", "", "B. A. C", "B. 42; C: 43", "B. the angle at C", "B. C", "B. I", "B ❌", "B. ✗",
        "B. \\neq", "B \\text{ is it}", "B) because it is", "(A) or (B)", "ac", "Z", "maybe",
    ],
)  # fmt: skip
def test_what_is_no_choice_chooses_nothing(text: str) -> None:
    assert chosen_letters(text, "ABCDEFGHIJ") is None


@pytest.mark.parametrize("text", ["B", "(b)", "\\text{(B)}", "B.", "option B", "the answer is (B)"])
def test_one_letter_may_be_written_in_several_ways(text: str) -> None:
    assert chosen_letters(text, LETTERS) == {"B"}
    assert chosen_letters("AC", LETTERS) == chosen_letters("(A) (C)", LETTERS) == {"A", "C"}


OPTIONS = {
    "A": "True", "B": "It is not correct", "C": "E. coli", "D": "$\\frac{1}{2}$", "E": "Both A and B",
}  # fmt: skip


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
