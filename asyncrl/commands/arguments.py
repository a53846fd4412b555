"""Arguments of commands on a recipe: the recipe (or a model in its place) and overrides, in any order."""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import OVERLAY
from asyncrl.recipe.shipped import is_named
from asyncrl.system.hub import is_hub_id
from asyncrl.system.places import RECIPE

_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")


def add_recipe(
    parser: argparse.ArgumentParser,
    *,
    help: str = "a recipe, the name of a shipped one, or a run's recipe.yaml",
    may_be_none: bool = False,
) -> None:
    """Parsed to `recipe`, a path, and `overrides`, a list of "section.key=value" and "@FILE".

    With `may_be_none` no word at all is parsed to a `recipe` of None.
    """
    parser.usage = "%(prog)s RECIPE [section.key=value ...] [@OVERLAY ...] [options]"
    parser.set_defaults(recipe=None, overrides=[])
    parser.add_argument(
        "words",
        nargs="*" if may_be_none else "+",
        action=_RecipeAndOverrides,
        metavar="RECIPE",
        help=f"{help}, and keys to change in it, such as rollout.max_staleness=0, or @FILE, whose keys are "
        "merged into it",
    )


class _RecipeAndOverrides(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = [str(word) for word in values or ()]
        if not words:
            return
        overrides = [word for word in words if is_override(word)]
        recipes = [word for word in words if word not in overrides]
        if len(recipes) != 1:
            parser.error(
                f"expected one recipe, found {' and '.join(recipes) or 'none'}. A key is changed by "
                f"section.key=value, such as rollout.max_staleness=0."
            )
        namespace.recipe, namespace.overrides = Path(recipes[0]), overrides


def check_has_tasks(recipe: Recipe, command: str) -> None:
    """Raises InputError for a recipe whose stage learns from rows, which no verifier grades."""
    if recipe.learns_from_rows():
        raise InputError(
            f"{command} is about tasks that are answered and graded, but the recipe's stage is "
            f"{recipe.stage}, which learns rows. `asyncrl check` reads all, `asyncrl prompt` shows "
            f"one."
        )


def is_override(word: str) -> bool:
    """Whether a word is a "section.key=value" or "@FILE"; a file of that name is a recipe."""
    is_either = _OVERRIDE.match(word) is not None or word.startswith(OVERLAY)
    return is_either and not os.path.isfile(word)


def is_model(place: Path) -> bool:
    """Whether it is no recipe but a model: a folder of one, a GGUF file, or a hub id."""
    # Imported here: it takes 0.1 s, which most commands on a recipe do not need.
    from asyncrl.model.gguf import is_gguf

    if place.is_dir():
        return (place / "config.json").is_file() and not (place / RECIPE).is_file()
    if is_named(place):
        return False
    return is_gguf(place) or (is_hub_id(str(place)) and place.suffix not in (".yaml", ".yml"))
