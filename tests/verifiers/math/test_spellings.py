"""One value in all its spellings, numbers in words and dates too; spellings of its neighbours are refused."""

import datetime
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.texts import date_of
from verifiers.math.verifier import MathVerifier
from verifiers.math.words import number_in_words
from verifiers.verdict import Outcome

MATH = MathVerifier()
THIN = st.lists(
    st.sampled_from(["\\,", "\\!", "\\;", "\\:", "\\ ", "\\thinspace "]), min_size=1, max_size=2
).map("".join)
BRACED_COMMA = st.tuples(THIN | st.just(""), st.sampled_from(["{,}", "{,} "]), THIN | st.just("")).map(
    "".join
)
SEPARATORS = st.one_of(THIN, BRACED_COMMA, st.sampled_from([",", ",\\!", ",\\! ", "\\!,\\!", " ", "~"]))


def is_correct(gold: str, answer: str) -> bool:
    return MATH.verify(f"so \\boxed{{{answer}}}", MATH.parse_reference(gold)).outcome is Outcome.CORRECT


@given(st.integers(1000, 10**13), st.data())
@settings(max_examples=150)
def test_groups_of_digits_with_any_separators_of_tex_are_one_number(number: int, data: st.DataObject) -> None:
    first, *groups = f"{number:,}".split(",")
    grouped = first + "".join(data.draw(SEPARATORS) + group for group in groups)
    assert is_correct(str(number), grouped)
    assert is_correct(grouped, str(number))
    assert not is_correct(str(number + 1), grouped)
    assert not is_correct(f"({', '.join([first, *map(str, map(int, groups))])})", grouped)


@given(st.integers(1000, 10**13), st.sampled_from([", ", ",\\,", ",\\ ", ",\\;", ";", ";\\,"]))
@settings(max_examples=60)
def test_groups_with_a_comma_and_a_space_are_items(number: int, separator: str) -> None:
    assert not is_correct(str(number), f"{number:,}".replace(",", separator))


@given(
    st.fractions(min_value=-50, max_value=50, max_denominator=60).filter(bool),
    st.sampled_from(
        ["{{-}}{}", "\\mathord{{-}}{}", "\\mathbin{{-}} {}", "negative {}", "minus {}", "\\text{{minus }}{}",
         "\\mathrel{{-}}{}", "{{ - }}{}", "x = {{-}}{}", "Negative ${}$"]
    ),
)  # fmt: skip
@settings(max_examples=150)
def test_a_minus_sign_in_any_dress_is_a_minus_sign(value: Fraction, dress: str) -> None:
    size = f"\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    assert is_correct(f"-{size}", dress.format(size))
    assert not is_correct(size, dress.format(size))


@given(st.integers(0, 99), st.text("0123456789", max_size=4), st.text("0123456789", min_size=1, max_size=5))
@settings(max_examples=150)
def test_a_repeating_decimal_is_its_fraction_in_each_spelling(whole: int, start: str, digits: str) -> None:
    value = Fraction(int(f"{whole}{start}") + Fraction(int(digits), 10 ** len(digits) - 1), 10 ** len(start))
    spellings = [f"{whole}.{start}({digits})", f"{whole}.{start}\\overline{{{digits}}}"]
    for spelling in spellings:
        assert is_correct(f"\\frac{{{value.numerator}}}{{{value.denominator}}}", spelling)
        assert not is_correct(f"\\frac{{{value.numerator + 1}}}{{{value.denominator}}}", spelling)
        assert all(is_correct(other, spelling) for other in spellings)


FUNCTIONS = st.lists(
    st.sampled_from(["x^2", "\\sin x", "3x", "\\ln x", "e^{x}", "\\frac{x}{2}", "\\sqrt{x}"]),
    min_size=1,
    max_size=3,
    unique=True,
)
CONSTANTS = st.sampled_from(["C", "K", "C_1", "C_{0}", "\\text{const}", "\\text{a constant}"])


@given(FUNCTIONS, CONSTANTS, CONSTANTS, st.sampled_from(["{} + {}", "{1} + {0}", "y = {} + {}"]))
@settings(max_examples=150)
def test_a_constant_of_integration_has_any_name(terms: list[str], one: str, other: str, order: str) -> None:
    function = " + ".join(terms)
    gold = order.format(function, one)
    assert is_correct(gold, order.format(function, other))
    assert not is_correct(gold, function)
    assert not is_correct(gold, f"{function} + 2x + {other}")
    assert not is_correct(gold, f"{function} + x {other}")
    assert not is_correct(function, f"{function} + {other}")


@given(
    st.integers(0, 1439),
    st.integers(1, 1439),
    st.sampled_from(["{}:{:02} {}", "{}:{:02}\\text{{ {}}}", "{}:{:02}{}"]),
)
@settings(max_examples=150)
def test_a_time_of_day_is_the_same_in_24_hours(minutes: int, change: int, spelling: str) -> None:
    (hour, minute), half = divmod(minutes, 60), "PM" if minutes >= 720 else "a.m."
    twelve, day = spelling.format((hour - 1) % 12 + 1, minute, half), f"{hour}:{minute:02}"
    other = divmod((minutes + change) % 1440, 60)
    assert is_correct(day, twelve)
    assert is_correct(twelve, day)
    # Only the half of the day may be left out.
    left_out = other == ((hour - 1) % 12 + 1, minute)
    assert is_correct(f"{other[0]}:{other[1]:02}", twelve) is left_out


QUALIFIERS = st.sampled_from(
    [", {0} \\in \\mathbb{{Z}}", ", {0} is an integer", "\\text{{, where }}{0}\\text{{ is an integer}}",
     " \\text{{ for any integer }}{0}", " ({0} \\in Z)", ", \\forall {0} \\in \\mathbb{{Z}}",
     " \\text{{ with }}{0}\\text{{ an integer}}",
     "\\quad ({0} \\text{{ integer}})", " \\text{{ for all integers }} {0}."]
)  # fmt: skip


@given(
    st.fractions(min_value=-2, max_value=2, max_denominator=6),
    st.fractions(min_value=Fraction(1, 6), max_value=2, max_denominator=6),
    st.integers(-3, 3),
    st.sampled_from("knm"),
    QUALIFIERS,
)
@settings(max_examples=150)
def test_a_family_over_the_integers_is_the_same_in_any_letter_and_from_any_member(
    start: Fraction, step: Fraction, shift: int, letter: str, qualifier: str
) -> None:
    def family(start: Fraction, step: Fraction, letter: str, qualifier: str) -> str:
        first = f"\\frac{{{start.numerator}}}{{{start.denominator}}}\\pi"
        formula = f"{first} + \\frac{{{step.numerator}}}{{{step.denominator}}} {letter}\\pi"
        return f"x = {formula}{qualifier.format(letter)}"

    gold = family(start, step, "k", ", k \\in \\mathbb{{Z}}")
    assert is_correct(gold, family(start + shift * step, step, letter, qualifier))
    assert is_correct(family(start, step, letter, qualifier), gold)
    assert not is_correct(gold, family(start + step / 3, step, letter, qualifier))
    assert not is_correct(gold, family(start, 2 * step, letter, qualifier))
    assert not is_correct(gold, family(start, step, letter, ""))


PAIRS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=4, unique=True)


@given(PAIRS, PAIRS, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_solutions_as_assignments_are_the_tuples_in_any_order_and_no_others(
    pairs: list[tuple[int, int]], others: list[tuple[int, int]], source: random.Random
) -> None:
    shuffled = source.sample(pairs, len(pairs))
    tuples = ", ".join(f"({x}, {y})" for x, y in pairs)
    assigned = "; ".join(f"x={x}, y={y}" for x, y in shuffled)
    for gold in (
        tuples,
        f"\\{{{tuples}\\}}",
        f"(x, y) = {tuples}",
        "; ".join(f"x={x}, y={y}" for x, y in pairs),
    ):
        assert is_correct(gold, assigned)
        is_same = set(pairs) == set(others)
        assert is_correct(gold, "; ".join(f"x={x}, y={y}" for x, y in others)) is is_same
        assert not is_correct(gold, f"{assigned}; x=10, y=10")
    assert is_correct(assigned, tuples)


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


MONTHS = "January February March April May June July August September October November December".split()
DAYS = st.dates(datetime.date(1000, 1, 1), datetime.date(2999, 12, 31))


def ordinal(day: int) -> str:
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def spellings(date: datetime.date, *, with_year: bool) -> list[str]:
    month, day = MONTHS[date.month - 1], date.day
    year, comma = (f" {date.year}", f", {date.year}") if with_year else ("", "")
    found = [
        f"{month} {day}{comma}",
        f"{day} {month}{year}",
        f"\\text{{{month} {ordinal(day)}{comma}}}",
        f"\\text{{the {ordinal(day)} of {month}{year}}}",
        f"\\text{{{month[:3]}. }}{day}{comma}",
        f"\\text{{{month} }} {day}^{{\\text{{{ordinal(day)[-2:]}}}}}{comma}",
    ]
    return [*found, date.isoformat()] if with_year else found


@given(DAYS, st.booleans())
@settings(max_examples=40)
def test_a_date_is_right_in_each_spelling(date: datetime.date, with_year: bool) -> None:
    for gold in spellings(date, with_year=with_year):
        for answer in spellings(date, with_year=with_year):
            assert is_correct(gold, answer), (gold, answer)


@given(DAYS, DAYS, st.booleans())
@settings(max_examples=40)
def test_another_day_is_wrong(date: datetime.date, other: datetime.date, with_year: bool) -> None:
    if (date.month, date.day) == (other.month, other.day):
        other = other.replace(day=1 + other.day % 28)
    for gold in spellings(date, with_year=with_year)[:4]:
        assert not any(is_correct(gold, answer) for answer in spellings(other, with_year=with_year))
        assert not any(is_correct(gold, answer) for answer in spellings(date, with_year=not with_year))


def test_a_day_that_no_calendar_has_is_no_date() -> None:
    for text in ("april 31", "february 30", "july 0", "2023-02-29", "2024-13-01", "july", "4", "7/4/2024"):
        assert date_of(text) is None
    assert date_of("february 29") == "--02-29"
    assert date_of("2024-02-29") == "2024-02-29"
