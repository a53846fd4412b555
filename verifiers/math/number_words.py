"""Numbers in words: twenty-one, one hundred and five, fifteen hundred. A grammar, so that a list of numbers
("twenty, one", "one and two") and half a number are none."""

import re
from collections.abc import Sequence

_UNITS = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen".split()
    )
}
_TENS = {
    word: 10 * value
    for value, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)
}
_SCALES = {"trillion": 10**12, "billion": 10**9, "million": 10**6, "thousand": 10**3}
_WORD = re.compile(r"[a-z]+")
_MAX_CHARACTERS = 200


def number_in_words(text: str) -> int | None:
    """The whole number that the text spells, in small letters and with single spaces; else None."""
    if len(text) > _MAX_CHARACTERS or "," in text:
        return None
    words: list[str] = []
    for part in text.split():
        joined = part.split("-")
        if len(joined) > 2 or (len(joined) == 2 and not (joined[0] in _TENS and _digit(joined[1]))):
            return None
        words += joined
    if not words or not all(map(_WORD.fullmatch, words)):
        return None
    if words == ["zero"]:
        return 0
    return _above_thousand(words, bound=10**15)


def _above_thousand(words: Sequence[str], *, bound: int) -> int | None:
    """Groups of three digits, each with a scale smaller than the one before."""
    scale = next((word for word in words if word in _SCALES), None)
    if scale is None:
        return _below_thousand(words)
    at = words.index(scale)
    size = _SCALES[scale]
    group = _below_thousand(words[:at])
    if group is None or group > 999 or size >= bound:
        return None
    rest = words[at + 1 :]
    if not rest:
        return group * size
    # "two thousand and five"; but "two thousand and five hundred" is two numbers.
    has_and = rest[0] == "and"
    value = _above_thousand(rest[1:] if has_and else rest, bound=size)
    if value is None or value >= size or (has_and and value > 99):
        return None
    return group * size + value


def _below_thousand(words: Sequence[str]) -> int | None:
    """Up to 999, and hundreds up to 9,900: fifteen hundred."""
    if "hundred" not in words:
        return _below_hundred(words)
    at = words.index("hundred")
    hundreds = 1 if tuple(words[:at]) == ("a",) else _below_hundred(words[:at])
    if hundreds is None or hundreds % 10 == 0:
        return None
    rest = words[at + 1 :]
    if not rest:
        return 100 * hundreds
    value = _below_hundred(rest[1:] if rest[0] == "and" else rest)
    return None if value is None else 100 * hundreds + value


def _below_hundred(words: Sequence[str]) -> int | None:
    match tuple(words):
        case (word,):
            return _TENS.get(word) or _UNITS.get(word) or None
        case (tens, unit) if tens in _TENS and _digit(unit):
            return _TENS[tens] + _UNITS[unit]
    return None


def _digit(word: str) -> bool:
    return 0 < _UNITS.get(word, 0) < 10
