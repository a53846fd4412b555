"""The key of a recipe that was meant by a name that is none: misspelt, or without its section."""

import difflib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from asyncrl.recipe.terms import kinds_in, numbers_of

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
        for key, share in dotted_keys(root or _recipe())
        if (likeness := share * _likeness_elsewhere(word, key.rpartition(".")[2])) >= LEAST_ALIKE_ELSEWHERE
    ]
    best = max((likeness for likeness, _ in (*own, *others)), default=None)
    meant = [name for likeness, name in own if likeness == best][:1]
    meant = meant or [key for likeness, key in others if likeness == best]
    return f" Did you mean {_listed(meant)}?" if meant else ""


def section_in(kind: Any) -> type[BaseModel] | None:
    """The section that a key's type names, at any depth of unions and lists."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    found = (section_in(inner) for inner in getattr(kind, "__args__", ()))
    return next((section for section in found if section is not None), None)


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
        elif (inner := section_in(field.annotation)) is not None and prefix.count(".") < _MOST_NESTED:
            yield from _keys_of(inner, f"{prefix}{name}.")


def _recipe() -> type[BaseModel]:
    from asyncrl.recipe.recipe import Recipe

    return Recipe


def _likeness_elsewhere(word: str, name: str) -> float:
    """A word of the name, such as steps for num_steps, is more than a likeness of letters."""
    alike = _likeness(word, name)
    return max(alike, _OF_A_WORD + (1 - _OF_A_WORD) * alike if word in name.split("_") else 0.0)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()


def _listed(names: list[str]) -> str:
    shown = names[:MOST_NAMED]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
