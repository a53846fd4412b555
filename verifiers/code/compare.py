"""When a program's output is the expected one. Pure functions on the host; the program sees none of it.

Standard output: lines (blank ones and carriage returns aside) of the same tokens. A token may differ in
digits only where the expected one is a decimal fraction, within the tolerance. Read piece by piece, up to the
first difference: the work follows the expected output, whatever was printed. Values: match.py."""

import math
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Literal, get_args

_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[eE][+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MAX_NUMBER_LENGTH = 400
_SPACE_BYTE = re.compile(rb"[\t-\r\x1c-\x1f ]")
_RUN = re.compile(r"\S+|\s+")
# Where str.splitlines ends a line.
_LINE_END = re.compile(r"[\n-\r\x1c-\x1e\x85\u2028\u2029]")
_PIECE_BYTES = 1 << 16
_NOISE_DIGITS = 15
_NO_TOKEN = "\n"
_LINE_BREAK = "\r\n"
_END = ""
Whitespace = Literal["lines", "tokens", "exact"]
WHITESPACE: tuple[Whitespace, ...] = get_args(Whitespace)


def close(expected: float, actual: float, tolerance: float, absolute: float = 0.0) -> bool:
    """Whether they differ by no more than the tolerance relative to the expected one, or by `absolute`; of an
    expected zero the tolerance is absolute. False for NaN, and for infinities unless equal."""
    if expected == actual:
        return True
    if not (math.isfinite(expected) and math.isfinite(actual)):
        return False
    # What is left of a sum that should be zero, such as 5.551115123125783e-17, is not told from zero. It has
    # as many digits as a float can have; a constant such as 6.626e-34 was written with fewer.
    noise = tolerance * 1e-6 if _num_digits(expected) >= _NOISE_DIGITS else 0.0
    return abs(expected - actual) <= max(tolerance * (abs(expected) or 1.0), noise, absolute)


def _num_digits(number: float) -> int:
    return len(repr(number).lstrip("-").lower().partition("e")[0].replace(".", "").strip("0"))


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
    # The expected digits were rounded in their last place, which may be more than the tolerance of
    # a small number.
    rounding = min(tolerance, 0.5 * 10.0 ** _last_place(expected))
    return close(ours, theirs, tolerance, rounding)


def _last_place(number: str) -> int:
    """Power of ten of a decimal's last digit: -2 for 0.25 and 25e-2."""
    digits, _, exponent = number.lower().partition("e")
    return max(min(int(exponent or 0), 300), -300) - len(digits.partition(".")[2])


def _pieces(data: bytes, longest: int) -> Iterator[str | None]:
    """The text, cut at spaces into pieces of about 64 KiB; ends with None at a token
    of over `longest` bytes."""
    start = 0
    while start < len(data):
        least = start + _PIECE_BYTES
        cut = _SPACE_BYTE.search(data, least, least + longest + 1)
        end = cut.end() if cut is not None else least + longest + 1
        yield data[start:end].decode("utf-8", "surrogateescape")
        if cut is None and end < len(data):
            yield None
            return
        start = end


def _words(data: bytes, longest: int, *, by_lines: bool) -> Iterator[str]:
    """The tokens, with _LINE_BREAK between those of different lines; blank lines leave no trace."""
    has_begun = line_ended = False
    for piece in _pieces(data, longest):
        if piece is None:
            yield _NO_TOKEN
            return
        for run in _RUN.finditer(piece):
            word = run.group()
            if word[0].isspace():
                line_ended = line_ended or _LINE_END.search(word) is not None
                continue
            if by_lines and line_ended and has_begun:
                yield _LINE_BREAK
            has_begun, line_ended = True, False
            yield word


def _same_exactly(expected: bytes, actual: bytes) -> bool:
    if len(actual) > 2 * len(expected) + _PIECE_BYTES:
        # Carriage returns at most double it.
        return False
    ours, theirs = (text.replace(b"\r\n", b"\n").rstrip(b"\n") for text in (expected, actual))
    return ours == theirs


def same_output(expected: str, actual: bytes, *, whitespace: str = "lines", tolerance: float = 1e-6) -> bool:
    """Whether the bytes a program wrote are the expected text, by the rule `whitespace` of WHITESPACE."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if whitespace == "exact":
        return _same_exactly(wanted, actual)
    if wanted.rstrip() == actual.rstrip():
        return True
    by_lines = whitespace == "lines"
    ours = _words(wanted, len(wanted), by_lines=by_lines)
    theirs = _words(actual, len(wanted), by_lines=by_lines)
    return all(_tokens_equal(a, b, tolerance) for a, b in zip_longest(ours, theirs, fillvalue=_END))
