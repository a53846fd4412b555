"""A model in the place of a recipe on the command line."""

from pathlib import Path

from asyncrl.model.gguf import is_gguf
from asyncrl.recipe.shipped import is_named
from asyncrl.system.hub import is_hub_id
from asyncrl.system.places import RECIPE


def is_model(place: Path) -> bool:
    """Whether it is no recipe but a model: a folder of one, a GGUF file, or a hub id."""
    if place.is_dir():
        return (place / "config.json").is_file() and not (place / RECIPE).is_file()
    if is_named(place):
        return False
    return is_gguf(place) or (is_hub_id(str(place)) and place.suffix not in (".yaml", ".yml"))
