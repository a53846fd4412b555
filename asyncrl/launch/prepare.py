"""Making data and base model before the first run, in a process of its own with a progress bar.

Owns the order of making and fetching.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.data.gym import check_gyms
from asyncrl.errors import InputError
from asyncrl.examples.prepare import is_prepared
from asyncrl.model.source import check_revision, is_of_hub
from asyncrl.observe.terminal.stage import stage
from asyncrl.readers.trackers.tracker import check_trackers
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import shown
from asyncrl.recipe.sections.section import OBJECT, Marker, changed_texts
from asyncrl.system.plugins import refuse_moved
from sandbox.kernel import die_with_parent


def prepare_and_fetch(
    recipe: Recipe, path: Path, overrides: Sequence[str], fetch: Callable[[Recipe], Recipe]
) -> Recipe:
    """Has everything here that the recipe works on, its model by `fetch`. Raises InputError.

    A model that `prepare` does not make is fetched first: its mistakes are refused before minutes of work.
    """
    check_names(recipe)
    check_revision(recipe.model)
    check_gyms(recipe.data, recipe.evaluation)
    check_trackers(recipe.trackers)
    if _makes_model(recipe):
        prepare(recipe, path, overrides)
        return fetch(recipe)
    recipe = fetch(recipe)
    prepare(recipe, path, overrides)
    return recipe


def check_names(recipe: Recipe) -> None:
    """Raises InputError where a key names an object of a module of asyncrl that has moved."""

    def check(marker: Marker, text: str) -> str:
        if marker is OBJECT:
            refuse_moved(text)
        return text

    changed_texts(Recipe, recipe.model_dump(), check)


def _makes_model(recipe: Recipe) -> bool:
    """Whether the model or the teacher is in `prepare.folder`, or may come to be elsewhere by what `prepare`
    does."""
    if recipe.prepare is None:
        return False
    models = [recipe.model, *([recipe.of_teacher().model] if recipe.teacher.is_on() else [])]
    paths = [Path(model.path) for model in models if not is_of_hub(model)]
    return any(path.is_relative_to(recipe.prepare.folder) or not path.exists() for path in paths)


def prepare(recipe: Recipe, path: Path, overrides: Sequence[str]) -> None:
    """Makes `prepare.folder` unless it is up to date. Raises InputError with what the process said."""
    if recipe.prepare is None or is_prepared(recipe.prepare):
        return
    command = [sys.executable, "-P", "-m", "asyncrl.examples.prepare", "--recipe", str(path), *overrides]
    with stage(f"preparing {shown(Path(recipe.prepare.folder))}") as progress:
        # Errors go to a file: a pipe that is not read meanwhile could fill up and block the process.
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                # Whatever ends this process ends that one.
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    said = json.loads(line)
                    progress.report(said["stage"], said["done"], said["total"])
                process.wait()
            except BaseException:
                process.kill()
                raise
            errors.seek(0)
            complaint = errors.read()
        if process.returncode != 0:
            raise InputError(f"preparing {recipe.prepare.folder} failed:\n{complaint.strip()[-2000:]}")
