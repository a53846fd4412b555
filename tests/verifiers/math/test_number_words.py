"""A number in words is read as that number, and what is no number is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.number_words import number_in_words

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def spelled(number: int, *, hyphen: str = "-", joiner: str = " and ") -> str:
    for size, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand")):
        if number >= size:
            rest = number % size
            before = f"{spelled(number // size, hyphen=hyphen, joiner=joiner)} {name}"
            if not rest:
                return before
            gap = joiner if rest < 100 else " "
            return f"{before}{gap}{spelled(rest, hyphen=hyphen, joiner=joiner)}"
    if number >= 100:
        before = f"{SMALL[number // 100]} hundred"
        rest = number % 100
        return f"{before}{joiner}{spelled(rest, hyphen=hyphen)}" if rest else before
    if number < 20:
        return SMALL[number]
    return TENS[number // 10] + (hyphen + SMALL[number % 10] if number % 10 else "")


@given(st.integers(0, 10**12 - 1), st.sampled_from("- "), st.sampled_from((" ", " and ")))
@settings(max_examples=300)
def test_a_spelled_number_is_that_number(number: int, hyphen: str, joiner: str) -> None:
    assert number_in_words(spelled(number, hyphen=hyphen, joiner=joiner)) == number


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from((", ", " or ", " to ", " over ", "; ")))
@settings(max_examples=200)
def test_two_numbers_are_not_one(one: int, other: int, between: str) -> None:
    assert number_in_words(spelled(one) + between + spelled(other)) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "and", "hundred", "thousand", "one two", "twenty twenty", "twenty eleven", "twenty-eleven",
        "two-one", "one and two", "twenty and one", "five hundred two thousand thousand",
        "one thousand one thousand", "one million two million", "two thousand and five hundred",
        "ten hundred", "not one", "minus one",
        "one half", "one-", "-one", "twenty-one-two", "hundred and one", "one hundred and", "zero hundred",
        "zero one", "a", "a thousand and", "one hundred, five",
    ],
)  # fmt: skip
def test_what_is_no_number_is_not_read_as_one(text: str) -> None:
    assert number_in_words(text) is None


def test_hundreds_may_be_counted_in_tens() -> None:
    assert number_in_words("fifteen hundred") == 1500
    assert number_in_words("twenty-one hundred and one") == 2101
    assert number_in_words("a hundred and five") == 105
