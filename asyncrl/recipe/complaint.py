"""Mistakes in keys as sentences: errors of pydantic with the key, its value and the expected kind; and the
key that was meant by a name that is none, misspelt or without its section.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from asyncrl.errors import did_you_mean
from asyncrl.recipe.former_keys import refusal
from asyncrl.recipe.recipe import Recipe
from asyncrl.recipe.sections.section import mapping_of
from asyncrl.recipe.terms import kinds_in, numbers_of, owners
from asyncrl.recipe.unread_keys import sentence
from asyncrl.system.words import as_written, kind_of

EXPECTED = {
    "model_type": "expected a section with keys",
    "dict_type": "expected keys with values",
    "string_type": "expected text",
}
"""In place of what pydantic says of Python's kinds."""
HINTS = {
    "bool_type": " Write true or false.",
    "int_type": " Write digits without quotes, colons or leading zeros.",
    "float_type": " Write digits without quotes, colons or leading zeros, such as 0.5 or 1e-6.",
}
"""How each kind of value is written. Kinds are strict: 010, 1:30 and yes are text."""
_SHOWN_CHARACTERS = 200
_CHOICE = re.compile(r"'([^']*)'")
_OF_KEYS = "[key]"
"""The end of pydantic's place of a key of free text."""


def complaint(details: Any, root: type[BaseModel]) -> str:
    """`details` is one of the errors of a ValidationError, which keys of `root` caused."""
    kind, place, value = details["type"], details["loc"], details["input"]
    location = ".".join(place_of(place))
    if kind == "invalid_key" or place[-1:] == (_OF_KEYS,):
        names = [part for part in place if part != _OF_KEYS]
        fields = ", ".join(_section_at(names[:-1], root).model_fields)
        known = f" Known here: {fields}." if kind == "invalid_key" else ""
        section = ".".join(place_of(tuple(names[:-1])))
        where = f"in {section}, the key" if section else "the key"
        return f"{where} {as_written(value)} is {kind_of(value)}, expected a name.{known}"
    if kind == "extra_forbidden":
        return _unknown(place, location, value, root)
    if kind == "term" and isinstance(value, dict):
        value = value["name"]
    if kind == "missing":
        return f"{location} is missing and has no default."
    if kind == "value_error":
        return str(details["ctx"]["error"])
    message = EXPECTED.get(kind) or details["msg"][0].lower() + details["msg"][1:]
    hint = HINTS.get(kind, "")
    if isinstance(value, str) and (choices := _CHOICE.findall(details["msg"])):
        hint = did_you_mean(value, choices)
    return f"{location} is {as_written(value)[:_SHOWN_CHARACTERS]}: {message}.{hint}"


def place_of(location: tuple[str | int, ...]) -> list[str]:
    """Without the "<tags>" of a key that takes several kinds of values."""
    return [str(part) for part in location if not str(part).startswith("<")]


def _unknown(place: tuple[str | int, ...], location: str, value: Any, root: type[BaseModel]) -> str:
    if (former := refusal(location, value)) is not None:
        return former
    # The number of a term in a list belongs to the same key.
    number = place_of(place)[-1]
    term = ".".join(part for part in place_of(place)[:-1] if not part.isdigit())
    if names := [*owners(f"{term}.{number}", root)]:
        choice = f"{{name: {names[0]}, {number}: {as_written(value)}}}"
        return sentence(location, value, f"{term} to {choice} ({number} belongs to {', '.join(names)})")
    known = list(_section_at(place[:-1], root).model_fields)
    meant = nearest_key(str(place[-1]), known, root) or f" Known here: {', '.join(known)}."
    return f"unknown key {location}.{meant}"


def _section_at(location: Sequence[str | int], root: type[BaseModel]) -> type[BaseModel]:
    section = root
    for part in location:
        if part in section.model_fields:
            section = mapping_of(section.model_fields[str(part)].annotation) or section
    return section


MOST_NAMED = 3
LEAST_ALIKE, LEAST_ALIKE_ELSEWHERE = 0.6, 0.7
_OF_A_WORD = 0.9
_OF_A_NUMBER = 0.95
"""Share of the likeness that counts for a number of a term: its name, such as steps, is short."""
_MOST_NESTED = 3
"""Sections in one another."""


def nearest_key(word: str, here: Iterable[str] = (), root: type[BaseModel] | None = None) -> str:
    """ " Did you mean KEY?" where a name of `here`, the section that `word` stands in, is almost `word`, or
    where a key of any section of `root` (Recipe by default) is; else an empty text. The most alike wins,
    that of `here` among equals."""
    own = [(likeness, name) for name in here if (likeness := _likeness(word, name)) >= LEAST_ALIKE]
    others = [
        (likeness, key)
        for key, share in dotted_keys(root or Recipe)
        if (likeness := share * _likeness_elsewhere(word, key.rpartition(".")[2])) >= LEAST_ALIKE_ELSEWHERE
    ]
    best = max((likeness for likeness, _ in (*own, *others)), default=None)
    meant = [name for likeness, name in own if likeness == best][:1]
    meant = meant or [key for likeness, key in others if likeness == best]
    if not meant:
        return ""
    *shown, last = meant[:MOST_NAMED]
    return f" Did you mean {', '.join(shown)} or {last}?" if shown else f" Did you mean {last}?"


@lru_cache
def dotted_keys(root: type[BaseModel]) -> tuple[tuple[str, float], ...]:
    """The keys of all sections, those of a section after it, each with the share of its likeness."""
    return tuple(_keys_of(root, ""))


def _keys_of(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, float]]:
    for name, field in section.model_fields.items():
        yield prefix + name, 1.0
        if kinds := kinds_in(field.annotation):
            numbers = dict.fromkeys(number for kind in kinds for number in numbers_of(kind))
            yield from ((f"{prefix}{name}.{number}", _OF_A_NUMBER) for number in numbers)
        elif (inner := mapping_of(field.annotation)) is not None and prefix.count(".") < _MOST_NESTED:
            yield from _keys_of(inner, f"{prefix}{name}.")


def _likeness_elsewhere(word: str, name: str) -> float:
    """A word of the name, such as steps for num_steps, is more than a likeness of letters."""
    alike = _likeness(word, name)
    return max(alike, _OF_A_WORD + (1 - _OF_A_WORD) * alike if word in name.split("_") else 0.0)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
