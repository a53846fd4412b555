"""Words are text and products of letters are products, whatever the word."""

import random
import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verifiers.golds import missing
from verifiers.math.letters import SHORT_WORDS, LettersAre, letters_are, run_is
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

MATH = MathVerifier()
PRODUCTS = MathVerifier(letters="product")
TEXTS = MathVerifier(letters="word")


def is_right(gold: str, answer: str, math: MathVerifier = MATH) -> bool:
    return math.verify(f"so \\boxed{{{answer}}}", math.parse_reference(gold)).outcome is Outcome.CORRECT


@st.composite
def words(draw: st.DrawFn) -> str:
    """Words of two to eight letters, in small letters, in capitals or with a capital."""
    long = st.text(string.ascii_lowercase, min_size=4, max_size=8)
    word = draw(st.one_of(st.sampled_from(sorted(SHORT_WORDS)), long))
    word = draw(st.sampled_from((str, str.capitalize, str.upper)))(word)
    assume(letters_are(word) is LettersAre.WORD and missing(word) is None)
    return word


STYLES = ("{}", "{}.", " {} ", "${}$", "**{}**", "\\emph{{{}}}") + tuple(
    f"\\{style}{{{{{{}}}}}}" for style in ("text", "textbf", "mathrm")
)


@given(words(), st.sampled_from(STYLES), st.sampled_from((str.lower, str.upper, str.capitalize)))
@settings(max_examples=300)
def test_a_word_is_right_in_any_case_and_style(word: str, style: str, case: object) -> None:
    assert callable(case)
    assert is_right(word, style.format(case(word)))


@given(words(), st.sampled_from(STYLES), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_no_other_order_of_the_letters_of_a_word_is_right(
    word: str, style: str, chance: random.Random
) -> None:
    letters = list(word)
    chance.shuffle(letters)
    other = "".join(letters)
    assume(other.casefold() != word.casefold())
    assert not is_right(word, style.format(other))
    assert not is_right(word, " ".join(other))
    assert not is_right(word, " \\cdot ".join(other))


@given(words())
@settings(max_examples=100)
def test_the_product_of_the_letters_of_a_word_is_not_the_word(word: str) -> None:
    assert not is_right(word, " \\cdot ".join(word))


@given(st.text("bcdfghjkmnpqrstvwxz", min_size=2, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_letters_without_a_vowel_are_a_product_in_any_order_and_in_their_own_case(
    run: str, chance: random.Random
) -> None:
    letters = list(run)
    chance.shuffle(letters)
    # Not ln, csc and the like, nor per cent.
    assume({letters_are(run), letters_are("".join(letters))} == {LettersAre.PRODUCT})
    assume("pct" not in (run, "".join(letters)))
    assert is_right(run, "".join(letters))
    assert is_right(run, " \\cdot ".join(letters))
    assert is_right(run, f"\\text{{{run}}}")
    assert not is_right(run, run.upper())


@given(st.text(string.ascii_letters, min_size=2, max_size=3).filter(lambda text: missing(text) is None))
@settings(max_examples=300)
def test_letters_are_right_as_they_are_written_whatever_they_are(run: str) -> None:
    assume(letters_are(run) is not None)
    for math in (MATH, TEXTS, PRODUCTS):
        assert is_right(run, run, math)
        assert is_right(run, f"\\text{{{run}}}", math)


@pytest.mark.parametrize("gold", ["no", "act", "xy", "abcd", "Bob"])
def test_the_row_decides_how_letters_are_read(gold: str) -> None:
    assert is_right(gold, " ".join(reversed(gold)), PRODUCTS)
    assert not is_right(gold, gold.swapcase(), PRODUCTS)
    assert is_right(gold, gold.swapcase(), TEXTS)
    assert not is_right(gold, gold[::-1].replace("boB", "oBb"), TEXTS)


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        (LettersAre.WORD, "no No yes DNE odd Bob Tue Kai XIV SAS TTH cost"),
        (LettersAre.PRODUCT, "xy ab pqr mgh nk nRT qE ABC"),
        (LettersAre.GUESS, "ac at BAD Fe"),
        (None, "x and sin pi sinx alpha"),
    ],
)
def test_a_run_of_letters_is_a_word_a_product_or_a_guess(kind: LettersAre | None, runs: str) -> None:
    assert {run: run_is(run) for run in runs.split()} == dict.fromkeys(runs.split(), kind)


def test_only_a_gold_that_may_be_both_is_a_guess() -> None:
    assert MATH.parse_reference("at").is_guess
    assert MATH.parse_reference(["2", "at"]).is_guess
    for gold in ("no", "xy", "2at", "\\text{at}", "42", "no solution"):
        assert not MATH.parse_reference(gold).is_guess
    assert not PRODUCTS.parse_reference("at").is_guess
    assert not TEXTS.parse_reference("at").is_guess
