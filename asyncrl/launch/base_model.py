"""The base model of a recipe and its teacher, on this machine before any work begins: fetched from a hub or
converted once.

What it shows of its progress goes to standard error: standard output is a command's own.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asyncrl.errors import InputError
from asyncrl.launch.placement import place
from asyncrl.launch.rank_processes import run_ranks
from asyncrl.model.folder import read_shape
from asyncrl.model.shape import ModelShape
from asyncrl.model.side_models import known_shape, side_processes, side_recipe
from asyncrl.model.source import CONFIG, FILES, WITHOUT_WEIGHTS, resolve
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import shown
from asyncrl.records import PolicyVersion
from asyncrl.run.earlier import unexported_steps, with_earlier_run, with_earlier_teacher
from asyncrl.run.folder import RunFolder, read_run_recipe, with_commit, with_recorded_commit

_STAGE = functools.partial(stage, console=Console(stderr=True, highlight=False))


def fetch_model(recipe: Recipe) -> Recipe:
    """`recipe` with its model here, and with the commit of a hub's model, a run's own where it has one.

    Raises InputError with the way out.
    """
    recipe = with_recorded_commit(_with_run(recipe))
    source = resolve(recipe.model, stage=_STAGE)
    if recipe.critic.path is not None and recipe.algorithm.needs_critic():
        resolve(recipe.critic_model(), stage=_STAGE)
    for name in recipe.agent.opponents:
        resolve(recipe.of_opponent(name).model, stage=_STAGE)
    return with_commit(recipe, source.commit) if source.commit is not None else recipe


def _with_run(recipe: Recipe) -> Recipe:
    """As `with_earlier_run`; a step that has a checkpoint alone is exported first."""
    for run, step in unexported_steps(recipe):
        export_steps(run, [step])
    return with_earlier_run(recipe)


def export_steps(run: Path, steps: Sequence[PolicyVersion]) -> None:
    """Writes the Hugging Face folders of whole checkpoints that `run` did not export. Raises InputError, also
    where another process has the run open."""
    named = f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))} of {shown(run)}"
    recipe = fetch_model(read_run_recipe(run))
    words = ["--run-folder", str(run), "--steps", *map(str, steps)]
    with RunFolder(run) as folder, _STAGE(f"exporting {named}"):
        folder.take_lock()
        code = run_ranks("asyncrl.trainer.export_steps", words, recipe, place(recipe, ("trainer",)))
    if code:
        raise InputError(
            f"Exporting {named} failed, as said above. Name a step that it exported, or correct what is said "
            f"and run the same command again."
        )


def fetch_models(recipe: Recipe) -> Recipe:
    """As `fetch_model`, and the teacher where there is one: of one elsewhere config.json and tokenizer."""
    recipe = with_earlier_teacher(_with_run(recipe))
    if recipe.teacher.is_on():
        files = FILES if recipe.teacher.url is None else WITHOUT_WEIGHTS
        resolve(recipe.of_teacher().model, stage=_STAGE, files=files)
    return fetch_model(recipe)


def fetch_model_to_train(recipe: Recipe) -> Recipe:
    """As `fetch_models`, but a run that has ended needs no model: none is fetched."""
    if RunFolder(recipe.folder()).end(recipe) is not None:
        return with_recorded_commit(with_earlier_teacher(_with_run(recipe)))
    return fetch_models(recipe)


def fetch_side_shapes(recipe: Recipe) -> dict[str, ModelShape | None]:
    """As `fetch_shape`, of the teacher and opponents whose servers the run starts, by the names of their
    processes; None of an architecture that the trainer does not know."""
    recipe = with_earlier_run(with_earlier_teacher(recipe))
    models = {name: side_recipe(recipe, name).model for name in side_processes(recipe)}
    found = {name: resolve(model, stage=_STAGE, files=CONFIG).folder for name, model in models.items()}
    return {name: known_shape(folder) for name, folder in found.items()}


def fetch_shape(recipe: Recipe) -> ModelShape:
    """The shape of the recipe's model, for which a hub is asked for config.json alone. Raises InputError."""
    recipe = with_recorded_commit(_with_run(recipe))
    return read_shape(resolve(recipe.model, stage=_STAGE, files=CONFIG).folder)
