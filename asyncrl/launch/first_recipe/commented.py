"""Files of `asyncrl init`: a recipe as YAML with comments beside its keys, and a project folder for a CPU."""

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.system.places import RECIPE

WIDTH = 118
VALUES = 30
"""Column at which comments begin, at least."""
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_WORDS = ("true", "false", "null", "n", "y", "yes", "no", "on", "off", "nan", "inf")


Row = tuple[str, Any, str]
"""(key of a recipe, such as trainer.parallel.tensor, value, comment or empty text)."""


def plain(rows: Iterable[Row]) -> dict[str, Any]:
    """The recipe as plain data."""
    raw: dict[str, Any] = {}
    for key, value, _ in rows:
        place = raw
        *outer, last = key.split(".")
        for section in outer:
            place = place.setdefault(section, {})
        place[last] = value
    return raw


def text(title: str, rows: Iterable[Row]) -> str:
    """The recipe as YAML; `title` is the comment at its top."""
    lines = [
        f"# {line}".rstrip() for paragraph in title.split("\n") for line in _wrapped(paragraph, WIDTH - 2)
    ]
    before: list[str] | None = None
    for key, value, comment in rows:
        *outer, last = key.split(".")
        if before is None or outer[:1] != before[:1]:
            lines.append("")
        for depth, section in enumerate(outer):
            if before is None or outer[: depth + 1] != before[: depth + 1]:
                lines.append(f"{'  ' * depth}{section}:")
        before = outer
        lines += _line(last, value, comment, 2 * len(outer))
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, comment: str, indent: int) -> list[str]:
    """The comment behind the value, or above it where it is too long."""
    left = f"{' ' * indent}{key}: {written(value)}"
    beside = f"{left:<{VALUES}} # {comment}" if comment else left
    if len(beside) <= WIDTH:
        return [beside]
    above = [f"{' ' * indent}# {line}" for line in _wrapped(comment, WIDTH - indent - 2)] if comment else []
    if len(left) > WIDTH and isinstance(value, dict):
        inner = [f"{' ' * indent}  {name}: {written(each)}" for name, each in value.items()]
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


SOURCE = Path(__file__).parent / "skeleton"
FILES = ("README.md", RECIPE, "verifier.py", "data/heldout.jsonl", "data/train.jsonl")


def write_skeleton(folder: Path) -> list[Path]:
    """The files written into `folder`, which is made. Raises InputError and writes none where one exists."""
    texts = {name: (SOURCE / name).read_text(encoding="utf-8") for name in FILES}
    return write_new(folder, texts)


def write_new(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Writes files that are not there yet. Raises InputError."""
    targets = {folder / name: text for name, text in texts.items()}
    if there := [str(path) for path in targets if path.exists() or path.is_symlink()]:
        are, them = ("is", "it") if len(there) == 1 else ("are", "them")
        *others, last = there
        named = f"{', '.join(others)} and {last}" if others else last
        raise InputError(
            f"{named} {are} there already, and nothing is overwritten. Name another folder (asyncrl "
            f"init FOLDER), or move {them} away."
        )
    try:
        for path, text in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another program may have made it meanwhile.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be written: {error.strerror}. Name a folder that can."
        ) from error
    return list(targets)
