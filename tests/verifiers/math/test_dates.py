"""Dates are equal in all spellings of one day, and on no other day."""

import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.dates import date_of
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

MATH = MathVerifier()
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


def is_right(gold: str, answer: str) -> bool:
    return MATH.verify(f"\\boxed{{{answer}}}", MATH.parse_reference(gold)).outcome is Outcome.CORRECT


@given(DAYS, st.booleans())
@settings(max_examples=40)
def test_a_date_is_right_in_each_spelling(date: datetime.date, with_year: bool) -> None:
    for gold in spellings(date, with_year=with_year):
        for answer in spellings(date, with_year=with_year):
            assert is_right(gold, answer), (gold, answer)


@given(DAYS, DAYS, st.booleans())
@settings(max_examples=40)
def test_another_day_is_wrong(date: datetime.date, other: datetime.date, with_year: bool) -> None:
    if (date.month, date.day) == (other.month, other.day):
        other = other.replace(day=1 + other.day % 28)
    for gold in spellings(date, with_year=with_year)[:4]:
        assert not any(is_right(gold, answer) for answer in spellings(other, with_year=with_year))
        assert not any(is_right(gold, answer) for answer in spellings(date, with_year=not with_year))


def test_a_day_that_no_calendar_has_is_no_date() -> None:
    for text in ("april 31", "february 30", "july 0", "2023-02-29", "2024-13-01", "july", "4", "7/4/2024"):
        assert date_of(text) is None
    assert date_of("february 29") == "--02-29"
    assert date_of("2024-02-29") == "2024-02-29"
