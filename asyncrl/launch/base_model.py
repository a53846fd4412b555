"""The base model of a recipe and its teacher, on this machine before any work begins: fetched from a hub or
converted once.

What it shows of its progress goes to standard error: standard output is a command's own.
"""

import functools

from rich.console import Console

from asyncrl.model.folder import ModelShape, read_shape
from asyncrl.model.source import CONFIG, FILES, WITHOUT_WEIGHTS, resolve
from asyncrl.model.teacher import known_shape
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Recipe
from asyncrl.run.earlier import with_earlier_run, with_earlier_teacher
from asyncrl.run.folder import RunFolder, with_commit, with_recorded_commit

_STAGE = functools.partial(stage, console=Console(stderr=True, highlight=False))


def fetch_model(recipe: Recipe) -> Recipe:
    """`recipe` with its model here, and with the commit of a hub's model, a run's own where it has one.

    Raises InputError with the way out.
    """
    recipe = with_recorded_commit(with_earlier_run(recipe))
    source = resolve(recipe.model, stage=_STAGE)
    return with_commit(recipe, source.commit) if source.commit is not None else recipe


def fetch_models(recipe: Recipe) -> Recipe:
    """As `fetch_model`, and the teacher where there is one: of one elsewhere config.json and tokenizer."""
    recipe = with_earlier_teacher(recipe)
    if recipe.teacher.is_on():
        files = FILES if recipe.teacher.url is None else WITHOUT_WEIGHTS
        resolve(recipe.of_teacher().model, stage=_STAGE, files=files)
    return fetch_model(recipe)


def fetch_model_to_train(recipe: Recipe) -> Recipe:
    """As `fetch_models`, but a run that has ended needs no model: none is fetched."""
    if RunFolder(recipe.folder()).end(recipe) is not None:
        return with_recorded_commit(with_earlier_teacher(with_earlier_run(recipe)))
    return fetch_models(recipe)


def fetch_teacher_shape(recipe: Recipe) -> ModelShape | None:
    """As `fetch_shape`, of the teacher; None of an architecture that the trainer does not know."""
    model = with_earlier_teacher(recipe).of_teacher().model
    return known_shape(resolve(model, stage=_STAGE, files=CONFIG).folder)


def fetch_shape(recipe: Recipe) -> ModelShape:
    """The shape of the recipe's model, for which a hub is asked for config.json alone. Raises InputError."""
    recipe = with_recorded_commit(with_earlier_run(recipe))
    return read_shape(resolve(recipe.model, stage=_STAGE, files=CONFIG).folder)
