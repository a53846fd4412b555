"""Recipes for tests: only what the code under test reads, everything else by default."""

from pathlib import Path
from typing import Any

from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe
from asyncrl.recipe.terms import name_of


def make_recipe(folder: Path, /, **sections: Any) -> Recipe:
    """A recipe that trains the model in `folder`; `sections` override, as trainer={"num_steps": 4}."""
    raw: dict[str, Any] = {
        "name": "test",
        "model": {"path": str(folder), "dtype": "float32"},
        "data": {"train": str(folder / "none.jsonl")},
        "evaluation": {"every_steps": 0},
        # The defaults are of models that are ten thousand times as large.
        "trainer": {"learning_rate": 1e-4},
    }
    if name_of(sections.get("algorithm", {}).get("advantage")) == "gae":
        raw["critic"] = {"learning_rate": 1e-4}
    for name, section in sections.items():
        raw[name] = raw.get(name, {}) | section if isinstance(section, dict) else section
    return parse_recipe(raw, source="test")
