"""Numbers rounded for people: half goes away from zero, as at school and on the page (`fixed` in shell.js).

Python's own formats take a half to the even digit, and see halves that a float cannot hold as less: 2 of 16
would be 12% here and 13% in a browser.
"""

import math

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
