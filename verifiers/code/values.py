"""Plain Python values as JSON with their types, across the border between a program and its judge.

Decoding builds plain data only: no class is looked up, no code runs, depth and size are bounded. It still
hashes what the program chose, so containers are decoded in the sandbox alone; the host compares encoded
forms (compare.py). Imported on the host and, by file, in the sandbox (program.py, judge.py), so
it needs the standard library only."""

import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 60
MAX_NODES = 2_000_000
MAX_BITS = 4_000_000
MAX_FRACTION_BITS = 1 << 16
"""Limit for numerator and denominator: reducing them is quadratic."""
MAX_DECIMAL_CHARACTERS = 1100
"""Limit for a Decimal: making a ratio of it is quadratic, and a value may hold a hundred thousand."""
MAX_DIGITS = 400
"""Limit for a number in JSON itself; encoded numbers are strings, but for the ends of a range."""
MAX_BYTES = 64 << 20

Plain = Any
"""None, bool, int, float, complex, str, bytes, Fraction, Decimal, range, and containers of them."""


class NotPlain(ValueError):
    """A value that is not plain data, or too deep or large; or text that is no encoding."""


def _refuse(value: Any) -> Any:
    raise NotPlain(f"an object of type {type(value).__name__}, not data")


def _sequence(value: Any) -> tuple[str, Any] | None:
    for tag, kind in (("l", list), ("t", tuple), ("S", set), ("F", frozenset)):
        if isinstance(value, kind):
            return tag, value
    return None


def _scalar(value: Any) -> Any:
    """The encoding of a number or bytes, else None."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise NotPlain(f"an integer of {value.bit_length()} bits")
        # Hexadecimal: decimal conversion is quadratic, and limited by the interpreter.
        return ["i", hex(value)]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        return ["c", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "ba", bytes(value).hex()]
    if isinstance(value, Fraction):
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits > MAX_FRACTION_BITS:
            raise NotPlain(f"a fraction with an integer of {bits} bits")
        return ["q", hex(value.numerator), hex(value.denominator)]
    if isinstance(value, Decimal):
        text = str(value)
        if len(text) > MAX_DECIMAL_CHARACTERS:
            raise NotPlain(f"a decimal of {len(text)} characters")
        return ["D", text]
    if isinstance(value, range):
        return ["r", value.start, value.stop, value.step]
    return None


def encode(
    value: Any,
    other: Callable[[Any], Any] = _refuse,
    depth: int = 0,
    special: Callable[[Any], Any] | None = None,
) -> Any:
    """JSON-ready form; what is not plain goes to `other`. Raises NotPlain. Subclasses become their plain
    base. `special` is asked first for every value but scalars; None leaves the value to the rules here."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"nested deeper than {MAX_DEPTH}, or containing itself")
    if value is None or value is True or value is False:
        return value
    if type(value) is str:
        return value
    if special is not None and type(value) not in (int, float):
        found = special(value)
        if found is not None:
            return found
    if isinstance(value, str):
        return str.__str__(value)
    found = _scalar(value)
    if found is not None:
        return found
    if isinstance(value, dict):
        deeper = depth + 1
        return [
            "d",
            [
                [encode(key, other, deeper, special), encode(item, other, deeper, special)]
                for key, item in dict.items(value)
            ],
        ]
    sequence = _sequence(value)
    if sequence is not None:
        return [sequence[0], [encode(item, other, depth + 1, special) for item in sequence[1]]]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), other, depth + 1, special)
    return other(value)


def _integer(text: str, max_bits: int) -> int:
    if len(text) > max_bits // 4 + 3:
        raise NotPlain(f"an integer of more than {max_bits} bits")
    return int(text, 16)


def _decode_list(tag: str, items: list[Any], other: Callable[[Any], Any], depth: int) -> Any:
    if tag == "d":
        pairs = [(decode(key, other, depth + 1), decode(item, other, depth + 1)) for key, item in items]
        return dict(pairs)
    values = [decode(item, other, depth + 1) for item in items]
    kinds: dict[str, Callable[[list[Any]], Any]] = {"l": list, "t": tuple, "S": set, "F": frozenset}
    return kinds[tag](values)


def decode(form: Any, other: Callable[[Any], Any] = _refuse, depth: int = 0) -> Any:
    """The value of `encode`'s form. Raises NotPlain for anything else, whatever wrote it."""
    if depth > MAX_DEPTH + 1:
        raise NotPlain(f"nested deeper than {MAX_DEPTH}")
    if form is None or isinstance(form, bool | str):
        return form
    try:
        tag, *rest = form
        if tag in ("l", "t", "S", "F", "d"):
            return _decode_list(tag, rest[0], other, depth)
        if tag == "i":
            return _integer(rest[0], MAX_BITS)
        if tag == "f":
            return float.fromhex(rest[0])
        if tag == "c":
            return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
        if tag in ("b", "ba"):
            return bytes.fromhex(rest[0]) if tag == "b" else bytearray.fromhex(rest[0])
        if tag == "q":
            return Fraction(_integer(rest[0], MAX_FRACTION_BITS), _integer(rest[1], MAX_FRACTION_BITS))
        if tag == "D":
            if len(rest[0]) > MAX_DECIMAL_CHARACTERS:
                raise NotPlain(f"a decimal of {len(rest[0])} characters")
            return Decimal(rest[0])
        if tag == "r" and all(type(part) is int for part in rest):
            return range(*rest)
    except NotPlain:
        raise
    except Exception as error:
        raise NotPlain(f"no encoded value: {type(error).__name__}") from error
    return other(form)


def _short(text: str) -> str:
    if len(text) > MAX_DIGITS:
        raise NotPlain(f"a number of {len(text)} characters")
    return text


def loads(line: bytes) -> Any:
    """json.loads for text from outside: raises NotPlain for whatever is wrong with it."""
    if len(line) > MAX_BYTES or line.count(b"[") > MAX_NODES:
        raise NotPlain("too much data")
    try:
        # NotPlain is a ValueError too.
        return json.loads(
            line, parse_int=lambda text: int(_short(text)), parse_float=lambda text: float(_short(text))
        )
    except (ValueError, RecursionError) as error:
        raise NotPlain(f"no JSON: {type(error).__name__}") from error
