"""The section `prepare`."""

from typing import Any

from asyncrl.recipe.sections.section import Section


class Prepare(Section):
    """Makes data and a base model before the first run; skipped if they exist already."""

    target: str
    """Function "package.module:name" or "./file.py:name", called as function(folder, progress, **options)."""
    folder: str
    """Output folder, to which `model.path` and `data` usually point."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function. Changing one makes everything again."""
