"""The grammar of data.filter: strict, and each mistake is named with its place."""

import json
import math
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.recipe import Recipe
from asyncrl.recipe.row_filter import parse_filter

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(low=NUMBERS, high=NUMBERS, value=NUMBERS)
def test_a_range_includes_both_ends(low: float, high: float, value: float) -> None:
    low, high = sorted((low, high))
    found = parse_filter(f"pass_rate in [{low!r}, {high!r}]")
    assert found.columns() == ("pass_rate",)
    assert found.holds({"pass_rate": value}) == (low <= value <= high)


@given(sign=st.sampled_from(("<", "<=", ">", ">=", "==", "!=")), bound=NUMBERS, value=NUMBERS)
def test_comparisons_are_those_of_numbers(sign: str, bound: float, value: float) -> None:
    compare = {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }[sign]
    assert parse_filter(f"x{sign}{bound!r}").holds({"x": value}) == compare(value, bound)


@given(st.text(), st.text())
def test_texts_in_quotes_are_compared_as_they_are(text: str, value: str) -> None:
    found = parse_filter(f"source == {json.dumps(text)}")
    assert found.holds({"source": text})
    assert found.holds({"source": value}) == (value == text)


@pytest.mark.parametrize(
    ("text", "row", "holds"),
    [
        ("level < 4 and source in {'web', \"book\"}", {"level": 3, "source": "book"}, True),
        ("level < 4 and source in {'web', \"book\"}", {"level": 4, "source": "book"}, False),
        ("'my column' == true", {"my column": True}, True),
        ("'in' == 1", {"in": 1.0}, True),
        ("x == 1", {"x": True}, False),
        ("x == 1", {"x": "1"}, False),
        ("x != 1", {"x": "1"}, True),
        ("x > 0", {"x": None}, False),
        ("x != 0", {"x": None}, False),
        ("x < 9", {"x": math.nan}, False),
    ],
)
def test_a_filter_holds_of_a_row(text: str, row: dict[str, Any], holds: bool) -> None:
    assert parse_filter(text).holds(row) is holds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "at its end, expected the name of a column"),
        ("pass_rate", "at its end, expected in, <"),
        ("pass_rate = 0.5", "at '= 0.5', expected in, <"),
        ("pass_rate in", r"at its end, expected \[LOW, HIGH\] or \{A"),
        ("pass_rate in [0.1; 2]", "at '; 2]', expected ,"),
        ("pass_rate in [0.9, 0.1]", "is empty: 0.9 is above 0.1. Swap the two"),
        ("pass_rate in [0.1, 0.9", r"at its end, expected \]"),
        ("pass_rate < high", "at 'high', expected a number"),
        ("a < 1 or b < 2", "at 'or', expected \"and\", or the end"),
        ("a < 1 and", "at its end, expected the name of a column"),
        ("0.1 < a", "at '0.1', expected the name of a column"),
        ('a == "\\q"', "is no text"),
    ],
)
def test_a_mistake_names_the_filter_and_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as found:
        parse_filter(text)
    assert f"data.filter is {text!r}" in str(found.value)


def test_a_recipe_refuses_a_filter_that_is_no_filter() -> None:
    raw: dict[str, Any] = {"name": "x", "model": {"path": "m"}, "evaluation": {"every_steps": 0}}
    with pytest.raises(ValueError, match="data.filter is 'pass_rate ~ 1'"):
        Recipe.model_validate({**raw, "data": {"train": "t.jsonl", "filter": "pass_rate ~ 1"}})
