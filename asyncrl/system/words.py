"""Values in words for people: kinds of plain data, rounded numbers, shortened texts."""

import json
import math
from typing import Any


def kind_of(value: Any) -> str:
    """With its article: "a list", "text", "null". Python's own name for what is no plain data."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object with keys"
    return type(value).__name__


def as_written(value: Any) -> str:
    """A value of plain data in one line, close to how a file has it; text in quotes."""
    if isinstance(value, (str, float)):
        return repr(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):  # keys of other kinds, a value in itself
        return repr(value)


# Python's own formats take a half to the even digit, and see halves that a float cannot hold as less: 2 of 16
# would be 12% here and 13% in a browser.
_SLACK = 1e-9
"""Share of the last digit by which rounding errors may put a half too low."""
_LARGEST = 2**52
"""Larger numbers have no digits to round."""


def fixed(value: float, digits: int = 0) -> str:
    """`value` with `digits` decimals: 12.5 -> "13", -0.125 with two -> "-0.13", never "-0"."""
    scaled = abs(value) * 10**digits
    if not scaled < _LARGEST:
        return f"{value:.{digits}f}"
    whole = math.floor(scaled + 0.5 + _SLACK)
    return f"{'-' if value < 0 and whole else ''}{whole / 10**digits:.{digits}f}"


def signed(value: float, digits: int = 0) -> str:
    """`fixed` with its sign: "+1.5", "-0.2", "+0.0"."""
    text = fixed(value, digits)
    return text if text.startswith("-") else f"+{text}"


def as_percent(share: float, digits: int = 0) -> str:
    """0.125 -> "13%"."""
    return f"{fixed(100 * share, digits)}%"


def shortened(text: str, most: int) -> str:
    """`text`, or its first and last `most` / 2 characters with how many are left out."""
    half = most // 2
    left_out = len(text) - 2 * half
    if left_out <= 0:
        return text
    return f"{text[:half]}\n[... {left_out:,} of {len(text):,} characters are not shown ...]\n{text[-half:]}"
