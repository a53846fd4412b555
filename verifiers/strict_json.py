"""JSON as RFC 8259 defines it, which Python's reader is laxer than: no NaN or Infinity, no key twice in one
object, no number that a float cannot hold."""

import json
import math
from collections import Counter
from typing import Any

_ZERO_DIGITS = "0.+-"


class Flaw:
    """Stands in a value for what is no JSON."""

    def __init__(self, complaint: str) -> None:
        self.complaint = complaint


class _Reader:
    """The hooks of one reading. They note a flaw rather than raise, so that it can be found in the value."""

    def __init__(self) -> None:
        self.flaws: list[Flaw] = []

    def note(self, complaint: str) -> Flaw:
        self.flaws.append(Flaw(complaint))
        return self.flaws[-1]

    def constant(self, word: str) -> Flaw:
        return self.note(f"{word} is not JSON")

    def number(self, text: str) -> "float | Flaw":
        value = float(text)
        if math.isinf(value):
            return self.note(f"the number {text[:40]} is out of the range of a float")
        if value == 0.0 and text.lower().partition("e")[0].strip(_ZERO_DIGITS):
            return self.note(f"the number {text[:40]} is too small for a float")
        return value

    def once(self, pairs: list[tuple[str, Any]]) -> "dict[str, Any] | Flaw":
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return self.note(f'the key "{twice[:80]}" stands twice in an object')


def loads(text: str) -> Any:
    """The value of a JSON text. Raises ValueError."""
    value, flaws = loads_with_flaws(text)
    if flaws:
        raise ValueError(flaws[0].complaint)
    return value


def loads_with_flaws(text: str) -> tuple[Any, list[Flaw]]:
    """The value, with a Flaw where something is no JSON, and all Flaws. Raises ValueError for other text."""
    reader = _Reader()
    try:
        value = json.loads(
            text,
            parse_constant=reader.constant,
            parse_float=reader.number,
            object_pairs_hook=reader.once,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value, reader.flaws


def flaw_in(value: Any) -> Flaw | None:
    """The first Flaw in a value; one that stands in an object with a repeated key is lost with it."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Flaw):
            return found
        if isinstance(found, dict):
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)
    return None
