"""The section `prepare`."""

from typing import Annotated, Any

from asyncrl.recipe.markers import OBJECT, PATH
from asyncrl.recipe.sections.section import Section


class Prepare(Section):
    """Makes data and a base model before the first run; skipped if they exist already."""

    target: Annotated[str, OBJECT]
    """Function "package.module:name" or "./file.py:name", called as function(folder, progress, **options)."""
    folder: Annotated[str, PATH]
    """Output folder, to which `model.path` and `data` usually point."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function. Changing one makes everything again."""
