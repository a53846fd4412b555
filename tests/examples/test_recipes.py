"""Every recipe that is shipped is valid, and those that make their own base model agree with it."""

from pathlib import Path

import pytest

from asyncrl.examples.options import parse_options
from asyncrl.examples.pretrain import SumsOptions, prepare
from asyncrl.plugins import load_object
from asyncrl.recipe.file import load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
MADE_HERE = [path for path in RECIPES if load_recipe(path).prepare is not None]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_and_named_like_its_file(path):
    assert load_recipe(path).name == path.stem


@pytest.mark.parametrize("path", MADE_HERE, ids=lambda path: path.stem)
def test_what_a_recipe_prepares_is_what_it_reads(path):
    recipe = load_recipe(path)
    target = load_object(recipe.prepare.target)
    read = [recipe.model.path, recipe.data.train, recipe.data.heldout]
    assert callable(target)
    assert read == [f"{recipe.prepare.folder}/{name}" for name in ("model", "train.jsonl", "heldout.jsonl")]
    if target is prepare:
        options = parse_options(SumsOptions, recipe.prepare.options)
        assert options.max_position_embeddings >= recipe.model.context_tokens
