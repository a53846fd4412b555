"""Kinds of plain data in the words of YAML and JSON, for sentences that people read."""

import json
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
