"""A recipe as text, with a comment beside each key: plain data and reasons in, YAML out."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 118
VALUES = 30
"""Column at which comments begin, at least."""
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_WORDS = ("true", "false", "null", "n", "y", "yes", "no", "on", "off", "nan", "inf")


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a section."""

    key: str
    """With dots for a subsection: parallel.tensor."""
    value: Any
    comment: str = ""


Sections = Mapping[str, Sequence[Entry]]
"""Name -> keys, in their order. The keys of the recipe itself are those of ""."""


def plain(sections: Sections) -> dict[str, Any]:
    """The recipe as plain data."""
    raw: dict[str, Any] = {}
    for name, entries in sections.items():
        for entry in entries:
            place = raw
            *outer, last = [*([name] if name else []), *entry.key.split(".")]
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = entry.value
    return raw


def text(title: str, sections: Sections) -> str:
    """The recipe as YAML; `title` is the comment at its top."""
    lines = [
        f"# {line}".rstrip() for paragraph in title.split("\n") for line in _wrapped(paragraph, WIDTH - 2)
    ]
    for name, entries in sections.items():
        if not entries:
            continue
        lines.append("")
        if name:
            lines.append(f"{name}:")
        lines += _lines(entries, indent=2 if name else 0)
    return "\n".join(lines) + "\n"


def _lines(entries: Sequence[Entry], indent: int) -> list[str]:
    lines: list[str] = []
    opened = ""
    for entry in entries:
        outer, _, key = entry.key.rpartition(".")
        if outer and outer != opened:
            lines.append(f"{' ' * indent}{outer}:")
        opened = outer
        lines += _line(key, entry, indent + (2 if outer else 0))
    return lines


def _line(key: str, entry: Entry, indent: int) -> list[str]:
    """The comment behind the value, or above it where it is too long."""
    left = f"{' ' * indent}{key}: {written(entry.value)}"
    beside = f"{left:<{VALUES}} # {entry.comment}" if entry.comment else left
    if len(beside) <= WIDTH:
        return [beside]
    above = [f"{' ' * indent}# {line}" for line in _wrapped(entry.comment, WIDTH - indent - 2)]
    above = above if entry.comment else []
    if len(left) > WIDTH and isinstance(entry.value, dict):
        inner = [f"{' ' * indent}  {name}: {written(value)}" for name, value in entry.value.items()]
        return [*above, f"{' ' * indent}{key}:", *inner]
    return [*above, left]


def written(value: Any) -> str:
    """Plain data in one line of YAML."""
    match value:
        case str() if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        case dict():
            return "{" + ", ".join(f"{key}: {written(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(written, value)) + "]"
        case float():
            return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [""]
