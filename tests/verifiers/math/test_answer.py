"""The short ways of reading an answer come to the same as the whole way; what is put to sympy."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.extract import last_box
from verifiers.math import algebra, answer
from verifiers.math.letters import with_qualifier
from verifiers.math.parser import parse_answer, parse_tokens
from verifiers.math.tokens import Token, Unreadable, tokenize
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

CASES = Path(__file__).parents[1] / "cases"
PIECES = st.lists(
    st.sampled_from(
        r"5|12.5|0.5...|m| m| s|C|^\circ|\circ C|x|km|kg| and | no |act|\$|\pounds|\Omega|\in|\mathbb{Z}"
        r"|\text{ cm}|\text{where}|integer|,| |$|{|}|(|)|\(|\)|:|.|\,|**|/|=|\frac12|\cup|-|2^|k|%".split("|")
    ),
    max_size=8,
).map("".join)


@cache
def written() -> list[str]:
    rows = [
        json.loads(line)
        for file in sorted(CASES.glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    return [text for row in rows for text in (str(row["gold"]), last_box(row["response"]) or row["response"])]


def check_all_ways(text: str) -> None:
    if answer._NOTHING_AROUND.fullmatch(text) is not None:
        assert answer._unwrapped(text) == text
    try:
        tokens = tokenize(text)
    except Unreadable:
        return
    if not any(map(answer._is_of_words, tokens)):
        assert with_qualifier(tokens) == tokens
        assert answer._without_currency(tokens) == (tokens, None)
        assert answer._compound_quantity(tokens) is None
        assert answer._without_units(tokens) == (tokens, None)
    if not any(map(answer._is_short_word, tokens)):
        assert tree(tokens, short_words=True) == tree(tokens, short_words=False)


def tree(tokens: list[Token], *, short_words: bool) -> object:
    try:
        return parse_tokens(list(tokens), short_words=short_words)
    except Unreadable as error:
        return str(error)


def test_what_is_skipped_changes_no_text_of_the_cases() -> None:
    for text in written():
        check_all_ways(text)


@given(PIECES)
@settings(max_examples=400)
def test_what_is_skipped_changes_no_text(text: str) -> None:
    check_all_ways(text)


@given(st.from_regex(r"[-+]?[0-9]{1,5}(\.[0-9]{1,4}|/[1-9][0-9]{0,3})?", fullmatch=True))
@settings(max_examples=200)
def test_a_plain_number_is_read_as_by_the_grammar(text: str) -> None:
    found = answer.read_answer(text)
    assert found.readings == (parse_answer(text),)
    assert found.text == found.words == text and found.unit is None


@pytest.mark.parametrize("text", ["5 m", "\\$5", "5 \\Omega", "25^\\circ C", "x \\in A", "5\\text{ cm}"])
def test_a_token_of_a_unit_is_not_skipped(text: str) -> None:
    assert any(map(answer._is_of_words, tokenize(text)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What reaches sympy's own proof."""
    found: list[object] = []

    def note(difference: object) -> bool:
        found.append(difference)
        return False

    monkeypatch.setattr(algebra, "_is_zero", note)
    return found


@pytest.mark.parametrize("depth", [3, 14])
def test_a_plain_number_is_not_proved_equal_to_an_answer_with_letters(
    asked: list[object], depth: int
) -> None:
    verifier = MathVerifier()
    response = r"\boxed{x-1" + r"\log" * depth + "4}"
    assert verifier.verify(response, verifier.parse_reference("22")).outcome is Outcome.WRONG
    assert not asked


@pytest.mark.parametrize(("depth", "num_asked"), [(2, 1), (14, 0)])
def test_functions_inside_functions_are_put_to_sympy_up_to_a_depth(
    asked: list[object], depth: int, num_asked: int
) -> None:
    left, right = (parse_answer(r"\ln" * depth + end) for end in (" x", " (x+0)"))
    assert algebra.proves_equal(left, right) is False
    assert len(asked) == num_asked
