"""Recipes side by side: which keys differ, and which runs differ in their seed alone."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Keys = dict[str, Any]
"""Key with dots -> value; a list is one value."""

OWN = ("seed", "name", "run_folder")
"""Keys in which the runs of a group may differ."""
PLACES = ("name", "run_folder", "path", "folder")
"""Last parts of keys that say where something is or how it is called."""


def flat(recipe: Mapping[str, Any], prefix: str = "") -> Keys:
    """The keys of a recipe as `asyncrl keys` names them."""
    found: Keys = {}
    for name, value in recipe.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def differing(recipes: Sequence[Keys]) -> list[str]:
    """Keys without one value in all recipes, in the order of the recipes; paths and names last."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    found = [key for key in keys if len({_text(recipe, key) for recipe in recipes}) > 1]
    return sorted(found, key=lambda key: key.rpartition(".")[2] in PLACES)


def without_seed(recipe: Keys) -> str:
    """Equal for recipes that differ in nothing but seed, name and run_folder."""
    kept = {key: value for key, value in recipe.items() if key not in OWN}
    return json.dumps(kept, sort_keys=True, default=str)


def _text(recipe: Keys, key: str) -> str:
    return json.dumps(recipe[key], sort_keys=True, default=str) if key in recipe else ""
