"""Recipes as files: YAML and overrides to a validated `Recipe`, and back.

What is wrong is an InputError that names the key, its value and, where one is near, the key that was probably
meant.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at `path` with "section.key=value" overrides (values are YAML). Raises InputError."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no recipe at {path}. The ones shipped are in recipes/.") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(raw, dict):
        raise InputError(
            f"{path} holds {type(raw).__name__}, not the sections of a recipe (name, model, data, ...)."
        )
    for override in overrides:
        _apply_override(raw, override)
    if isinstance(raw.get("algorithm"), dict):
        raw["algorithm"] = _with_absolute_files(raw["algorithm"], path.parent)
    return parse_recipe(raw, source=str(path))


def parse_recipe(raw: dict[str, Any], *, source: str) -> Recipe:
    """A validated recipe from plain data; `source` names it in errors. Raises InputError."""
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(details) for details in error.errors()]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML: every key, defaults included; `load_recipe` reads it back."""
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise InputError(
            f'"{override}" is not an override. Write section.key=value, such as rollout.max_staleness=0.'
        )
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise InputError(f'"{override}": {parent} is a value, not a section.')
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise InputError(f'"{override}": the value is not YAML: {error}') from error


def _with_absolute_files(value: Any, folder: Path) -> Any:
    """The same with each "./file.py:name" found from the recipe's folder: the run folder gets a copy."""
    if isinstance(value, dict):
        return {key: _with_absolute_files(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_absolute_files(inner, folder) for inner in value]
    if isinstance(value, str) and ".py:" in value:
        return str((folder / value).resolve())
    return value


def _explain(details: Any) -> str:
    location = ".".join(str(part) for part in details["loc"])
    if details["type"] == "extra_forbidden":
        return f"unknown key {location}.{_nearest(details['loc'])}"
    if details["type"] == "missing":
        return f"{location} is missing and has no default."
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    message = details["msg"][0].lower() + details["msg"][1:]
    return f"{location} is {details['input']!r}: {message}."


def _nearest(location: tuple[str | int, ...]) -> str:
    section: type[BaseModel] = Recipe
    for part in location[:-1]:
        kind = section.model_fields[str(part)].annotation
        candidates = [kind, *getattr(kind, "__args__", ())]
        section = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    names = list(section.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f" Did you mean {near[0]}?" if near else f" Known here: {', '.join(names)}."
