"""When a program's output or value is the expected one."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import math

import pytest

from verifiers.code import values
from verifiers.code.compare import same_output, same_value


@pytest.mark.parametrize(("expected", "actual", "whitespace", "same"), [
    ("1 2\n3", "1 2\n3\n", "lines", True),
    ("1 2\n3", "1  2 \r\n\r\n3  \n\n", "lines", True),
    ("1 2\n3", "1\n2\n3", "lines", False),
    ("1 2\n3", "1\n2\n3", "tokens", True),
    ("1 2\n3", "1  2\n3", "exact", False),
    ("1 2\n3", "1 2\n3\n", "exact", True),
    ("1", "", "lines", False),
    ("", "\n\n", "lines", True),
    ("1", "1 1", "lines", False),
    ("0.5", "0.5000000001", "lines", True),
    ("0.5", "5e-1", "lines", True),
    ("0.5", "0.51", "lines", False),
    ("5", "5.0", "lines", False),
    ("5", "5.0000001", "lines", False),
    ("1.0", "1", "lines", True),
    ("0.5", "nan", "lines", False),
    ("0.5", "inf", "lines", False),
    ("1e400", "2e400", "lines", False),
    ("YES", "yes", "lines", False),
    ("größe", "größe", "lines", True),
    ("1000000.5", "1000000.0", "lines", True),
    ("0.0", "1e-9", "lines", True),
    ("3.2e-9", "0", "lines", False),
    ("3.2e-9", "0.0", "lines", False),
    ("0.0000000032", "0.0000000031", "lines", False),
    ("3.2e-9", "3.2000000001e-9", "lines", True),
    ("0.000003", "0.0000032", "lines", True),
    ("0.000003", "0.0000036", "lines", False),
    ("0.001", "0.0010001", "lines", True),
    ("0.00100000", "0.00100001", "lines", False),
    ("1e-999999999", "1", "lines", False),
    ("1e300", "1", "lines", False),
    ("6.626e-34", "0", "lines", False),
    ("6.62607015e-34", "0.0", "lines", False),
    ("6.626e-34", "6.6260000001e-34", "lines", True),
    ("5.551115123125783e-17", "0.0", "lines", True),
    ("-5.551115123125783e-17", "0", "lines", True),
])  # fmt: skip
def test_output_is_compared_by_lines_of_tokens(expected, actual, whitespace, same):
    assert same_output(expected, actual.encode(), whitespace=whitespace) == same


def test_bytes_that_are_no_text_equal_nothing():
    assert not same_output("x", b"\xff")


def test_without_a_tolerance_decimals_are_tokens_like_others():
    assert not same_output("0.5", b"0.50", tolerance=0)


def test_nan_equals_nothing():
    nan, inf, negative = (values.encode(x) for x in (math.nan, math.inf, -math.inf))
    assert not same_value(nan, nan)
    assert not same_value(["l", [nan]], ["l", [nan]])
    assert same_value(inf, inf) and not same_value(inf, negative)


@pytest.mark.parametrize(("expected", "actual", "same"), [
    (3.2e-9, 0.0, False), (3.2e-9, 3.2e-9 * (1 + 1e-9), True), (3.2e-9, 3.3e-9, False), (1e-3, 1.0005e-3, False),
    (0.0, 1e-9, True), (0.1 + 0.2 - 0.3, 0.0, True), (1e6, 1e6 + 0.5, True), (1e6, 1e6 + 5, False), (0.0, 1e-5, False),
    (3.2e-13, 0, False), (6.6e-34, 0.0, False), (3.2e-13, 3.2e-13 * (1 + 1e-9), True),
])  # fmt: skip
def test_the_tolerance_is_relative_to_what_is_expected(expected, actual, same):
    assert same_value(values.encode(expected), values.encode(actual)) == same
