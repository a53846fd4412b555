"""Entries of reasoning-gym as JSON that comes back the same, tuples, sets and numbers as keys included.

A scorer may ask whether a value is a tuple, or look a number up as a key. What JSON has no form for becomes
an object with one key that begins with "$"."""

import json
from collections.abc import Mapping
from typing import Any

Entry = dict[str, Any]
"""A task: "question", "answer" (None where reasoning-gym knows none) and "metadata"."""


def written_entry(entry: Mapping[str, Any]) -> Any:
    """The entry as JSON has it. Raises ValueError for a value of another type than plain data."""
    return _written(dict(entry))


def read_entry(text: str) -> Entry:
    """The entry of a JSON text, a new one at each call. Raises ValueError for what is none."""
    entry = _read(json.loads(text))
    if not isinstance(entry, dict) or not entry.keys() >= {"question", "answer", "metadata"}:
        raise ValueError(
            f"The entry is {text[:80]!r}, expected an object with question, answer and metadata."
        )
    return entry


def _written(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        # Numbers and texts of numpy are of classes derived from these.
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case list():
            return [_written(member) for member in value]
        case tuple():
            return {"$tuple": [_written(member) for member in value]}
        case set() | frozenset():
            members = [_written(member) for member in value]
            kind = "$set" if isinstance(value, set) else "$frozenset"
            # Sets have no order of their own, files of rows should.
            return {kind: sorted(members, key=json.dumps)}
        case dict():
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {str(key): _written(inner) for key, inner in value.items()}
            return {"$items": [[_written(key), _written(inner)] for key, inner in value.items()]}
        case _:
            raise ValueError(f"a {type(value).__name__} is not plain data: {str(value)[:80]!r}")


def _read(value: Any) -> Any:
    match value:
        case list():
            return [_read(member) for member in value]
        case {"$tuple": members}:
            return tuple(_read(member) for member in members)
        case {"$set": members}:
            return {_read(member) for member in members}
        case {"$frozenset": members}:
            return frozenset(_read(member) for member in members)
        case {"$items": items}:
            return {_read(key): _read(inner) for key, inner in items}
        case dict():
            return {key: _read(inner) for key, inner in value.items()}
        case _:
            return value
