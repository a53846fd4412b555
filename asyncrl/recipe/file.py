"""Recipes as files: YAML and overrides to a validated `Recipe`, and back.

Owns the rule about paths: those in a recipe are relative to its folder, those on the command line to the
current folder, those in a shipped one that was named to ./recipes (shipped.py); a loaded `Recipe` only has
absolute ones, and hub ids. Mistakes are InputErrors that name key, value and, if one is near, the key that
was probably meant.

An override is "section.key=value", or "@FILE": an overlay, a file with some keys of a recipe, which are
merged into it mapping by mapping.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe, shipped
from asyncrl.recipe.complaint import complaint, place_of
from asyncrl.recipe.former_keys import as_now
from asyncrl.recipe.sections.section import (
    BENCHMARK,
    CHANGEABLE,
    OBJECT,
    PATH_OR_HUB_ID,
    Marker,
    changed_texts,
    is_marked,
    marked,
)
from asyncrl.recipe.sources import is_data_file
from asyncrl.recipe.terms import OwnFunction, Term, inner_kind, merged, name_of, spread
from asyncrl.recipe.yaml_text import read_yaml, write_yaml
from asyncrl.system.hub import is_hub_id
from asyncrl.system.paths import expanded
from asyncrl.system.places import JOURNAL
from asyncrl.system.words import kind_of

PATH_RULE = (
    "Paths in a recipe are relative to the recipe's folder, those on the command line to the current one."
)
OVERLAY = "@"
"""Begins an override that names an overlay."""
_OBJECT_IN_FILE = re.compile(r"[^:\n]+\.py:[A-Za-z_]\w*")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at `path`, or the shipped one of that name, with overrides, one after the other:
    "section.key=value", whose values are YAML, and "@FILE", an overlay. Raises InputError."""
    found = shipped.find(path)
    return _resolve(_read_yaml(found.file), found.folder, str(path), overrides)


def name_in(path: Path) -> str:
    """The name that the recipe at `path`, or the shipped one of that name, says; "run" where it says none.
    Raises InputError."""
    found = _read_yaml(shipped.find(path).file).get("name")
    return found if isinstance(found, str) else "run"


def model_recipe(model: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe of defaults around a model alone, for what trains nothing; relative to the current folder.

    Raises InputError.
    """
    raw = {
        "name": "model",
        "model": {"path": model},
        "data": {"train": "none.jsonl"},
        "evaluation": {"every_steps": 0},
    }
    return _resolve(raw, Path.cwd(), model, overrides)


def _resolve(raw: dict[str, Any], folder: Path, source: str, overrides: Sequence[str]) -> Recipe:
    raw.setdefault("run_folder", Recipe.model_fields["run_folder"].default)
    # The resolved recipe of a run.
    if (folder / JOURNAL).is_file() or raw["run_folder"] == absolute(".", folder):
        raw = as_now(raw)
    make_absolute(raw, folder, raw)
    _follow_move(raw, folder)
    for override in overrides:
        if override.startswith(OVERLAY):
            _apply_overlay(raw, _overlay_path(override))
        else:
            _apply_override(raw, override)
    verifying = raw.setdefault("verifying", {})
    if isinstance(verifying, dict) and verifying.get("folder") is None:
        verifying["folder"] = absolute(".", folder)
    return parse_recipe(raw, source=source, overrides=overrides)


def _read_yaml(path: Path, *, kind: str = "recipe") -> dict[str, Any]:
    if is_data_file(path.name) and path.suffix != ".json":
        raise InputError(
            f"{path} looks like rows of data, expected a recipe in YAML. Name it in data.train of a recipe; "
            f"`asyncrl train` lists the ones shipped."
        )
    raw = shipped.read_plain(path, kind, "The recipe of a run is recipe.yaml in its folder.")
    if not isinstance(raw, dict):
        found = "is empty" if raw is None else f"holds {kind_of(raw)}"
        raise InputError(f"{path} {found}, expected the sections of a recipe (name, model, data, ...).")
    return raw


def parse_recipe(raw: dict[str, Any], *, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """A validated recipe from plain data; errors name the override that made them, else `source`. Raises
    InputError."""
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        lines = [
            f"{_origin(details, overrides) or source}: {complaint(details, Recipe)}"
            for details in error.errors()
        ]
        raise InputError("\n".join(lines)) from None


def _origin(details: Any, overrides: Sequence[str]) -> str | None:
    """The last override that set the value, or that is part of an impossible combination."""
    place = ".".join(place_of(details["loc"])) + "."
    for override in reversed(overrides):
        for key in _keys_of(override):
            is_value = place.startswith(f"{key}.")
            is_unknown = details["type"] == "extra_forbidden" and f"{key}.".startswith(place)
            is_part = details["type"] == "value_error" and key in details["msg"]
            if is_value or is_unknown or is_part:
                return f'override "{override}"'
    return None


def _keys_of(override: str) -> list[str]:
    """The dotted keys that an override sets."""
    if override.startswith(OVERLAY):
        found = shipped.find(_overlay_path(override), "overlay")
        return list(_leaves(_read_yaml(found.file, kind="overlay")))
    return [override.partition("=")[0]]


def _leaves(raw: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def dump_recipe(recipe: Recipe, *, has_defaults: bool = True) -> str:
    """The resolved recipe as YAML: every key, or those that differ from the defaults; `load_recipe` reads it
    back."""
    return write_yaml(recipe.model_dump(exclude_defaults=not has_defaults))


def absolute(value: str, folder: Path) -> str:
    """A path relative to `folder` made absolute; ~ is the home folder. Raises InputError."""
    return os.path.abspath(folder / expanded(Path(value)))


def absolute_object(value: str, folder: Path) -> str:
    """ "./file.py:name" relative to `folder` made absolute; any other text unchanged."""
    return absolute(value, folder) if _OBJECT_IN_FILE.fullmatch(value) else value


def shown(path: Path) -> Path:
    """The path for people: relative if it lies below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def _apply_override(raw: dict[str, Any], override: str) -> None:
    *parents, last = _key_of(override).split(".")
    place: Any = raw
    kind: type[BaseModel] | None = Recipe
    for parent in parents:
        if isinstance(place, list):
            place = _term_in(place, parent, override)
            continue
        kind = inner_kind(kind, parent)
        found = spread(place.get(parent), kind)
        place[parent] = place = {} if found is None else found
        is_section = isinstance(place, dict) or (isinstance(place, list) and kind is OwnFunction)
        if not is_section:
            raise InputError(f'"{override}": {parent} is a value, not a section.')
    if isinstance(place, list):
        raise InputError(f'"{override}": write the number after the term, such as {last}.limit.')
    place[last] = _value_of(override, Path.cwd(), raw)


def _term_in(terms: list[Any], name: str, override: str) -> dict[str, Any]:
    """The term of that name in a list, as a mapping that stands in the list. Raises InputError."""
    for place, term in enumerate(terms):
        if name_of(term) == name:
            terms[place] = spread(term, Term)
            return terms[place]  # type: ignore[no-any-return]
    known = ", ".join(str(name_of(term)) for term in terms) or "none"
    raise InputError(f'"{override}": the list has no term {name}, but {known}.')


def absolute_override(override: str, folder: Path) -> str:
    """An override whose paths are relative to `folder`, for any current folder. Raises InputError."""
    if override.startswith(OVERLAY):
        return OVERLAY + absolute(str(_overlay_path(override)), folder)
    return f"{_key_of(override)}={json.dumps(_value_of(override, folder, {}))}"


def _key_of(override: str) -> str:
    key, separator, _ = override.partition("=")
    if not separator or not key:
        raise InputError(
            f'"{override}" is not an override. Write section.key=value, such as rollout.max_staleness=0.'
        )
    return key


def _value_of(override: str, folder: Path, recipe: dict[str, Any]) -> Any:
    """The value of an override of `recipe`, its paths absolute as seen from `folder`. Raises InputError."""
    key, _, value = override.partition("=")
    *parents, last = key.split(".")
    try:
        given = {last: read_yaml(value)}
    except yaml.YAMLError as error:
        raise InputError(f'"{override}": the value is not YAML: {error}') from error
    for parent in reversed(parents):
        given = {parent: given}
    make_absolute(given, folder, recipe)
    for parent in parents:
        given = given[parent]
    return given[last]


def _overlay_path(override: str) -> Path:
    return Path(override.removeprefix(OVERLAY))


def _apply_overlay(raw: dict[str, Any], path: Path) -> None:
    """Merges the keys in the file at `path` into `raw`; paths in it are relative to its folder."""
    found = shipped.find(path, "overlay")
    overlay = _read_yaml(found.file, kind="overlay")
    make_absolute(overlay, found.folder, raw)
    raw.update(merged(raw, overlay, Recipe))


def make_absolute(raw: dict[str, Any], folder: Path, recipe: dict[str, Any]) -> None:
    """Makes the paths in `raw`, a part of `recipe`, absolute, as seen from `folder`. A hub id stays."""

    def change(marker: Marker, path: str) -> str:
        is_hub_id = marker is PATH_OR_HUB_ID and _is_hub_id(path, folder, recipe)
        return path if is_hub_id else absolute(path, folder)

    _change_paths(raw, change)


def _is_hub_id(path: str, folder: Path, recipe: dict[str, Any]) -> bool:
    """Whether `path` is a hub id and nothing that is there, or that `prepare` makes."""
    prepare = recipe.get("prepare")
    made = prepare.get("folder") if isinstance(prepare, dict) else None
    is_made = isinstance(made, str) and Path(absolute(path, folder)).is_relative_to(absolute(made, folder))
    return is_hub_id(path, folder) and not is_data_file(path) and not is_made


def _follow_move(raw: dict[str, Any], folder: Path) -> None:
    """Adapts the recipe of a run that was moved or copied to `folder`: the run folder is there now, and files
    that moved with it keep their place relative to the run."""
    new, old = absolute(".", folder), raw["run_folder"]
    if not (folder / JOURNAL).is_file() or not isinstance(old, str) or old == new:
        return

    def follow(marker: Marker, path: str) -> str:
        if not os.path.isabs(path):  # a hub id
            return path
        moved = os.path.abspath(os.path.join(new, os.path.relpath(path, old)))
        return moved if os.path.exists(moved) and not os.path.exists(path) else path

    _change_paths(raw, follow)
    raw["run_folder"] = new


def _change_paths(raw: dict[str, Any], change: Callable[[Marker, str], str]) -> None:
    """`change` takes what the key of a path is marked with, and the path."""

    def change_text(marker: Marker, text: str) -> str:
        if marker is OBJECT:
            return with_changed_file(text, functools.partial(change, marker))
        if marker is BENCHMARK:
            name, colon, file = text.rpartition(":")
            return f"{name}{colon}{change(marker, file)}" if is_data_file(text) else text
        return change(marker, text)

    changed_texts(Recipe, raw, change_text)


def object_files(section: Any) -> list[str]:
    """The files of a section of plain data that name objects in them, in the order of the section."""
    found: list[str] = []

    def note(file: str) -> str:
        found.append(file)
        return file

    with_changed_files(section, note)
    return found


def with_changed_files(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data whose "file.py:name" have other files."""
    if isinstance(value, dict):
        return {key: with_changed_files(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_changed_files(inner, change) for inner in value]
    return with_changed_file(value, change) if isinstance(value, str) else value


def with_changed_file(text: str, change: Callable[[str], str]) -> str:
    """ "file.py:name" with another file; any other text unchanged."""
    if not _OBJECT_IN_FILE.fullmatch(text):
        return text
    file, _, name = text.rpartition(":")
    return f"{change(file)}:{name}"


def is_moved(key: str, there: Any, now: Any) -> bool:
    """Whether both values of a key name the same file under two paths: by a link, or because it was moved."""
    may_be_path = is_marked(Recipe, key, PATH_OR_HUB_ID)
    if not may_be_path and not is_marked(Recipe, key, OBJECT):
        return False
    return _is_moved(there, now, may_be_path=may_be_path)


def _is_moved(there: Any, now: Any, *, may_be_path: bool) -> bool:
    def is_same(old: Any, new: Any) -> bool:
        return bool(old == new) or _is_moved(old, new, may_be_path=may_be_path)

    match there, now:
        case str(), str() if _OBJECT_IN_FILE.fullmatch(there) and _OBJECT_IN_FILE.fullmatch(now):
            (old_file, _, old_name), (new_file, _, new_name) = there.rpartition(":"), now.rpartition(":")
            return old_name == new_name and _is_moved_path(Path(old_file), Path(new_file))
        case str(), str():
            # A hub id is no path, and names one thing.
            is_path = may_be_path and os.path.isabs(there) and os.path.isabs(now)
            return is_path and _is_moved_path(Path(there), Path(now))
        case dict(), dict():
            return there.keys() == now.keys() and all(is_same(there[key], now[key]) for key in there)
        case ((list() | tuple()), (list() | tuple())):
            return len(there) == len(now) and all(map(is_same, there, now))
        case _:
            return False


def _is_moved_path(old: Path, new: Path) -> bool:
    if old.exists():
        return new.exists() and old.samefile(new)
    return old.name == new.name and new.exists()


def with_moved_files(recipe: Recipe, now: Recipe) -> Recipe:
    """`recipe` with the model folder and user code that `now` names, where its own are gone."""
    raw, other = recipe.model_dump(), now.model_dump()
    if os.path.isabs(recipe.model.path) and not os.path.exists(recipe.model.path):
        raw["model"]["path"] = now.model.path
    for key in marked(Recipe, OBJECT):
        if not is_marked(Recipe, key, CHANGEABLE):
            section, _, name = key.rpartition(".")
            raw[section][name] = _moved_objects(key, raw[section][name], other[section][name])
    return Recipe.model_validate(raw)


def _moved_objects(key: str, there: Any, now: Any) -> Any:
    if isinstance(there, dict) and isinstance(now, dict):
        return {name: _moved_objects(f"{key}.{name}", old, now.get(name)) for name, old in there.items()}
    return now if is_moved(key, there, now) else there
