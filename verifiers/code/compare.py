"""When a program's output or value is the expected one. On the host; the program sees none of it.

Standard output: lines (blank ones and carriage returns aside) of the same tokens. A token may differ in
digits only where the expected one is a decimal fraction, within the tolerance. Read piece by piece, up to the
first difference: the work follows the expected output, whatever was printed.

Values: both sides are forms of values.py. Nothing of the program's is built but single numbers of bounded
size: a set or dictionary of its members would hash them, and it could choose members whose hashes are all the
same. The work is linear in the form, and how large a form is read at all depends on the expected value. Types
count (True is not 1, "3" is not 3), but a list may be a tuple, 3.0 may be 3, and floats have the tolerance,
as members of sets and keys aside. NaN equals nothing."""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import zip_longest
from typing import Any, Literal, get_args

from verifiers.code import values
from verifiers.code.values import MAX_DEPTH, NotPlain

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


# Read whatever is due. A right value is not much larger than the expected one.
_SMALL_BYTES = 64 << 10
_SMALL_MEMBERS = 5_000
# Read for its truth alone, a value is not walked through: parsing it takes at most 50 ms.
_TRUTH_BYTES = 8 << 20
_TRUTH_MEMBERS = 200_000
_MAX_EXPONENT = 400
_CONTAINERS = {"l": ("[", "]"), "t": ("(", ")"), "S": ("{", "}"), "F": ("{", "}"), "d": ("{", "}")}


def same_value(expected: Any, actual: Any, *, tolerance: float = 1e-6) -> bool:
    """Whether the form `actual` is the form `expected`, by the rules above. Raises NotPlain for nonsense."""
    tag, other = _tag(expected), _tag(actual)
    if tag in ("i", "f"):
        return other in ("i", "f") and _same_number(expected, actual, tolerance)
    if tag in ("l", "t"):
        if other not in ("l", "t") or len(expected[1]) != len(actual[1]):
            return False
        pairs = zip(expected[1], actual[1], strict=True)
        return all(same_value(ours, theirs, tolerance=tolerance) for ours, theirs in pairs)
    if tag in ("S", "F"):
        if other not in ("S", "F") or len(expected[1]) != len(actual[1]):
            return False
        return _members(expected, strict=True) == _members(actual, strict=True)
    if tag != other:
        return False
    if tag == "d":
        if len(expected[1]) != len(actual[1]):
            return False
        ours, theirs = _pairs(expected, strict=True), _pairs(actual, strict=True)
        if ours.keys() != theirs.keys():
            return False
        return all(same_value(value, theirs[key], tolerance=tolerance) for key, value in ours.items())
    return spelling(expected, strict=True) == spelling(actual, strict=True)


def equal_value(expected: Any, actual: Any) -> bool:
    """Whether Python's == holds between the two values. Raises NotPlain for nonsense."""
    return spelling(expected) == spelling(actual)


def is_true(form: Any) -> bool:
    """The value's truth. Raises NotPlain for nonsense."""
    return bool(form[1]) if _tag(form) in _CONTAINERS else bool(values.decode(form))


def refusal(line: bytes, expected: Any, *, for_truth: bool = False) -> str:
    """Why a line is too large to be read where the form `expected` is due; empty when it is not."""
    size, members = len(line), _num_members(line)
    limits = (_TRUTH_BYTES, _TRUTH_MEMBERS) if for_truth else (_SMALL_BYTES, _SMALL_MEMBERS)
    if size <= limits[0] and members <= limits[1]:
        return ""
    # The same value takes at most so much more in another spelling: 3.0 for 3, True for 1.
    ours = json.dumps(expected).encode()
    if size <= limits[0] + 4 * len(ours) and members <= limits[1] + 2 * _num_members(ours):
        return ""
    return f"a value of {size} bytes, where the expected one takes {len(ours)}"


def _num_members(line: bytes) -> int:
    return line.count(b",") + line.count(b"[") + line.count(b"{")


def _tag(form: Any) -> str:
    """The form's tag; that of None, booleans and strings is the name of their type."""
    if form is None or isinstance(form, bool | str):
        return type(form).__name__
    if not isinstance(form, list) or len(form) < 2 or not isinstance(form[0], str):
        raise NotPlain("no encoded value")
    if form[0] in _CONTAINERS and not isinstance(form[1], list):
        raise NotPlain("no encoded value")
    return str(form[0])


def _same_number(expected: Any, actual: Any, tolerance: float) -> bool:
    ours, theirs = values.decode(expected), values.decode(actual)
    if not isinstance(ours, float):
        return bool(ours == theirs)
    try:
        return close(ours, float(theirs), tolerance)
    except OverflowError:
        return False


def _members(form: Any, *, strict: bool, depth: int = 0) -> set[str]:
    return {spelling(member, strict=strict, depth=depth) for member in form[1]}


def _pairs(form: Any, *, strict: bool, depth: int = 0) -> dict[str, Any]:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in form[1]):
        raise NotPlain("no encoded value")
    return {spelling(key, strict=strict, depth=depth): value for key, value in form[1]}


def spelling(form: Any, *, strict: bool = False, depth: int = 0) -> str:
    """A text that two forms share exactly when Python calls their values equal; with `strict`, True is not 1.

    Raises NotPlain for nonsense, and for NaN, which equals nothing."""
    if depth > MAX_DEPTH + 1:
        raise NotPlain(f"nested deeper than {MAX_DEPTH}")
    tag = _tag(form)
    if tag == "str":
        return f"s{len(form)}:{form}"
    if tag == "NoneType" or (tag == "bool" and strict):
        return str(form)
    if tag in ("l", "t"):
        inner = (spelling(member, strict=strict, depth=depth + 1) for member in form[1])
        return f"{tag}({','.join(inner)})"
    if tag in ("S", "F"):
        return f"S({','.join(sorted(_members(form, strict=strict, depth=depth + 1)))})"
    if tag == "d":
        pairs = _pairs(form, strict=strict, depth=depth + 1).items()
        texts = sorted(f"{key}={spelling(value, strict=strict, depth=depth + 1)}" for key, value in pairs)
        return f"d({','.join(texts)})"
    value = values.decode(form)
    if isinstance(value, bytes | bytearray):
        return f"b{value.hex()}"
    if isinstance(value, range):
        ends = (value[0], value[-1], value.step if value[0] != value[-1] else 0) if value else ()
        return f"r{ends}"
    return _spelled_number(value)


def _spelled_number(value: Any) -> str:
    if isinstance(value, complex):
        if value.imag != 0:
            return f"c({_spelled_number(value.real)},{_spelled_number(value.imag)})"
        value = value.real
    if isinstance(value, Decimal):
        is_nan, is_infinite = value.is_nan(), value.is_infinite()
    else:
        is_nan, is_infinite = value != value, value in (math.inf, -math.inf)
    if is_nan:
        raise NotPlain("NaN, which equals nothing")
    if is_infinite:
        return f"n{float(value)}"
    if isinstance(value, Decimal) and abs(value.adjusted()) > _MAX_EXPONENT:
        # As a ratio it could have a billion digits. It equals other decimals only.
        sign, digits, exponent = value.as_tuple()
        text = "".join(map(str, digits))
        assert isinstance(exponent, int)
        return f"D{sign}{text.rstrip('0')}e{exponent + len(text)}" if value else "n0/1"
    numerator, denominator = (int(value), 1) if isinstance(value, int) else value.as_integer_ratio()
    return f"n{numerator:x}/{denominator:x}"


def shown(form: Any, room: int = 80) -> str:
    """The value as Python writes it, cut off after `room` characters."""
    text = ""
    try:
        for piece in _written(form):
            text += piece
            if len(text) > room:
                break
    except NotPlain as error:
        text += f"({error})"
    return text[:room]


def _written(form: Any) -> Iterator[str]:
    """The value's text, in parts."""
    tag = _tag(form)
    if tag not in _CONTAINERS:
        yield _written_scalar(form[:200] if isinstance(form, str) else values.decode(form))
        return
    opening, closing = _CONTAINERS[tag]
    yield opening
    for number, member in enumerate(form[1]):
        if number:
            yield ", "
        if tag == "d":
            if not isinstance(member, list) or len(member) != 2:
                raise NotPlain("no encoded value")
            yield from _written(member[0])
            yield ": "
            yield from _written(member[1])
        else:
            yield from _written(member)
    yield ",)" if tag == "t" and len(form[1]) == 1 else closing


def _written_scalar(value: Any) -> str:
    if isinstance(value, int | Fraction) and value.numerator.bit_length() > 4000:
        return f"a number of {value.numerator.bit_length()} bits"
    return repr(value[:200] if isinstance(value, bytes | bytearray) else value)[:1000]
