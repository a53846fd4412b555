"""Every key of a recipe with kind, default and documentation, as Markdown: read from the section classes."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe.complaint import nearest_key
from asyncrl.recipe.recipe import Recipe
from asyncrl.recipe.sections.section import CHANGEABLE, PER_STEP, is_marked
from asyncrl.recipe.terms import TERMS

TITLE = "# Recipe keys\n\nWhat `asyncrl keys` prints: every key of a recipe with its kind and default.\n"

BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_CHOICE = re.compile(r"^(?!Default)(\w+): ", re.MULTILINE)
"""A line of a field's documentation that explains one of its values."""


def names() -> frozenset[str]:
    """The dotted names of all keys and sections."""
    return frozenset(_all_entries())


def markdown(asked: str | None = None) -> str:
    """All keys, or only the section or key `asked`. Raises InputError when there is none of that name."""
    entries = _all_entries()
    if asked is None:
        return "\n".join([TITLE, *entries.values()])
    found = [text for name, text in entries.items() if name == asked or name.startswith(f"{asked}.")]
    if not found:
        meant = did_you_mean(asked, entries) if "." in asked else nearest_key(asked)
        meant = meant or " `asyncrl keys` lists all of them."
        raise InputError(f"A recipe has no key {asked}.{meant}")
    return "\n".join(found).strip()


@functools.cache
def _all_entries() -> dict[str, str]:
    schema = Recipe.model_json_schema()
    return dict(_entries(schema, schema["$defs"]))


def _entries(
    section: dict[str, Any], sections: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """(dotted name, Markdown) of each key and section of a JSON schema; subsections follow their section."""
    inner = {}
    for key, value in section["properties"].items():
        choices = [choice for choice in (value, *value.get("anyOf", ())) if choice.get("type") != "null"]
        references = [choice["$ref"] for choice in choices if "$ref" in choice]
        if references and TERMS not in value:
            inner[prefix + key] = sections[references[0].rpartition("/")[2]]
        else:
            yield prefix + key, _item(prefix + key, value, is_required=key in section.get("required", ()))
            yield from _mapping(prefix + key, value, sections)
    for name, subsection in inner.items():
        yield name, f"\n## {name}\n\n{subsection['description']}\n"
        yield from _entries(subsection, sections, f"{name}.")


def _mapping(name: str, value: dict[str, Any], sections: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of the mapping that a key takes, among other kinds or in a list; data.train has explained
    those of others."""
    if (terms := value.get("items", value)).get(TERMS):
        yield from _numbers(name, terms, sections, is_list="items" in value)
        return
    references = [
        choice["$ref"]
        for kind in value.get("anyOf", [value])
        for choice in (*kind.get("oneOf", ()), kind.get("items", {}))
        if "$ref" in choice
    ]
    if not references or name in ("data.heldout", "evaluation.sets.sources"):
        return
    subsection = sections[references[0].rpartition("/")[2]]
    yield from _entries(subsection, sections, f"{name}.")


def _numbers(
    key: str, terms: dict[str, Any], sections: dict[str, Any], *, is_list: bool
) -> Iterator[tuple[str, str]]:
    """Numbers of the terms of a key, each with the names of its terms; of a list, below the term's name."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for choice in terms["oneOf"]:
        kind = sections[choice["$ref"].rpartition("/")[2]]["properties"]
        own = kind["name"]
        names = own.get("enum", [own["const"]] if "const" in own else ["your own"])
        for number, value in kind.items():
            if number != "name":
                place = f"{names[0]}.{number}" if is_list and names != ["your own"] else number
                found.setdefault(place, (value, []))[1].extend(names)
    for place, (value, names) in found.items():
        text = _item(f"{key}.{place}", value, is_required=False)
        yield f"{key}.{place}", text.replace("; ", f"; of {', '.join(names)}; ", 1)


def _item(name: str, value: dict[str, Any], *, is_required: bool) -> str:
    default = value.get("default")
    if is_required:
        state = "required"
    elif default is None:
        state = "optional"
    else:
        state = f"default {default if isinstance(default, str) else json.dumps(default)}"
    kinds = [_kind(choice) for choice in value.get("anyOf", [value])]
    kind = " or ".join(kind for kind in kinds if kind != "null" or default is not None)
    if is_marked(Recipe, name, CHANGEABLE) or is_marked(Recipe, name, PER_STEP):
        state += "; may change on resume"
    text = _CHOICE.sub(r"- \1: ", value["description"]).replace("\n", "\n  ")
    return f"- `{name}` ({kind}; {state}):\n  {text}"


def _kind(value: dict[str, Any]) -> str:
    if TERMS in value:
        return "name or mapping"
    if "oneOf" in value:
        return " or ".join(_kind(choice) for choice in value["oneOf"])
    if "anyOf" in value:
        return " or ".join(_kind(choice) for choice in value["anyOf"])
    if "$ref" in value:
        return "mapping"
    if "enum" in value:
        return " | ".join(value["enum"])
    if value["type"] == "array":
        return f"list of {_kind(value['items'])}"
    bounds = [f"{sign} {value[key]:g}" for key, sign in BOUNDS.items() if key in value]
    kind = "mapping" if value["type"] == "object" else value["type"]
    return " ".join([kind, " and ".join(bounds)]).rstrip()
