"""When a program's output or value is the expected one. Pure functions on the host; the program sees none of
it.

Standard output: lines (blank ones and carriage returns aside) of the same tokens. A token may differ in
digits only where the expected one is a decimal fraction, within the tolerance. Values: types count (True is
not 1, "3" is not 3), but a list may be a tuple, 3.0 may be 3, and floats have the tolerance. NaN equals
nothing."""

import math
import re
from typing import Any

_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[eE][+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MAX_NUMBER_LENGTH = 400
WHITESPACE = ("lines", "tokens", "exact")


def close(expected: float, actual: float, tolerance: float, absolute: float = 0.0) -> bool:
    """Whether they differ by no more than the tolerance relative to the expected one, or by `absolute`; of an
    expected zero the tolerance is absolute. False for NaN, and for infinities unless equal."""
    if expected == actual:
        return True
    if not (math.isfinite(expected) and math.isfinite(actual)):
        return False
    # What is left of a sum that should be zero, such as 5.6e-17, is not told from zero.
    noise = tolerance * 1e-6
    return abs(expected - actual) <= max(tolerance * (abs(expected) or 1.0), noise, absolute)


def _tokens_equal(expected: str, actual: str, tolerance: float) -> bool:
    if expected == actual:
        return True
    if tolerance == 0 or max(len(expected), len(actual)) > _MAX_NUMBER_LENGTH:
        return False
    if not _DECIMAL.fullmatch(expected) or not _NUMBER.fullmatch(actual):
        return False
    ours, theirs = float(expected), float(actual)
    # Beyond a float's range different digits would become one infinity.
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return False
    # The expected digits were rounded in their last place, which may be more than the tolerance of a small
    # number.
    rounding = min(tolerance, 0.5 * 10.0 ** _last_place(expected))
    return close(ours, theirs, tolerance, rounding)


def _last_place(number: str) -> int:
    """Power of ten of a decimal's last digit: -2 for 0.25 and 25e-2."""
    digits, _, exponent = number.lower().partition("e")
    return max(min(int(exponent or 0), 300), -300) - len(digits.partition(".")[2])


def _lines(text: str) -> list[list[str]]:
    return [tokens for tokens in (line.split() for line in text.splitlines()) if tokens]


def same_output(expected: str, actual: bytes, *, whitespace: str = "lines", tolerance: float = 1e-6) -> bool:
    """Whether the bytes a program wrote are the expected text, by the rule `whitespace` of WHITESPACE."""
    text = actual.decode("utf-8", "surrogateescape")
    if whitespace == "exact":
        return text.replace("\r\n", "\n").rstrip("\n") == expected.replace("\r\n", "\n").rstrip("\n")
    ours, theirs = _lines(expected), _lines(text)
    if whitespace == "tokens":
        ours, theirs = [sum(ours, [])], [sum(theirs, [])]
    if [len(line) for line in ours] != [len(line) for line in theirs]:
        return False
    pairs = (
        (a, b) for line, other in zip(ours, theirs, strict=True) for a, b in zip(line, other, strict=True)
    )
    return all(_tokens_equal(a, b, tolerance) for a, b in pairs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_value(expected: Any, actual: Any, *, tolerance: float = 1e-6) -> bool:
    """Whether a plain value is the expected one; the module's docstring states the rules."""
    if _is_number(expected) and _is_number(actual):
        if isinstance(expected, float):
            try:
                return close(expected, float(actual), tolerance)
            except OverflowError:
                return False
        return bool(expected == actual)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            return False
        return all(same_value(a, b, tolerance=tolerance) for a, b in zip(expected, actual, strict=True))
    if isinstance(expected, set | frozenset) and isinstance(actual, set | frozenset):
        return _same_members(expected, actual)
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        if not _same_members(set(expected), set(actual)):
            return False
        return all(same_value(value, actual[key], tolerance=tolerance) for key, value in expected.items())
    return bool(expected == actual)


def _same_members(expected: set[Any] | frozenset[Any], actual: set[Any] | frozenset[Any]) -> bool:
    # By value and type: {True} == {1} in Python.
    def kinds(members: set[Any] | frozenset[Any]) -> set[Any]:
        return {(isinstance(member, bool), member) for member in members}

    return kinds(expected) == kinds(actual)
