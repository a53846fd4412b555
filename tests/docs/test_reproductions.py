"""docs/reproductions.md: its tables of settings are those of the recipes."""

from asyncrl.recipe.file import load_recipe
from docs import published_settings


def test_the_tables_of_settings_are_those_of_the_recipes():
    # Otherwise: python tests/docs/published_settings.py
    assert published_settings.written() == published_settings.tables()


def test_the_page_says_of_each_asynchronous_twin_what_to_expect():
    text = published_settings.PAGE.read_text(encoding="utf-8")
    (_, twins) = text.split("## Asynchronous twins")
    for path in published_settings.RECIPES:
        assert f"| `{load_recipe(path).name}` | " in twins
