"""The data and models of a recipe, on this machine before any work begins: made by `prepare` in a process of
its own, fetched from a hub, converted or exported once.

What fetching shows of its progress goes to standard error: standard output is a command's own.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from asyncrl.data.gym import check_gyms
from asyncrl.errors import InputError
from asyncrl.examples.prepare import is_prepared
from asyncrl.launch.placement import GpuMap, place, rank_name
from asyncrl.model.folder import read_shape
from asyncrl.model.layout import rank_environment
from asyncrl.model.shape import ModelShape
from asyncrl.model.side_models import known_shape, side_processes, side_recipe
from asyncrl.model.source import CONFIG, FILES, WITHOUT_WEIGHTS, check_revision, is_of_hub, resolve
from asyncrl.observe.terminal.stage import stage
from asyncrl.readers.trackers.tracker import check_trackers
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import shown
from asyncrl.recipe.sections.section import OBJECT, Marker, changed_texts
from asyncrl.records import PolicyVersion
from asyncrl.run.earlier import unexported_steps, with_earlier_run, with_earlier_teacher
from asyncrl.run.folder import RunFolder, read_run_recipe, with_commit, with_recorded_commit
from asyncrl.system.network import free_ports
from asyncrl.system.plugins import refuse_moved
from sandbox.kernel import die_with_parent

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
    """Whether the model or the teacher is in `prepare.folder`, or may come about by what `prepare` does."""
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


def run_ranks(module: str, words: Sequence[str], recipe: Recipe, gpus: GpuMap) -> int:
    """Runs `module` once for each rank of the recipe's layout, until all have ended. 0, or the first exit
    code that is not; 1 where a signal ended a rank."""
    command = [sys.executable, "-P", "-m", module, *words]
    port = free_ports(1)[0]
    # Sessions of their own: Ctrl-C ends them by their parent alone, without a traceback from each.
    processes = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **rank_environment(recipe.trainer, rank, port=port),
                **gpus.environment_of(rank_name(rank)),
            },
            start_new_session=True,
        )
        for rank in range(recipe.trainer.num_processes)
    ]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return next((code if code > 0 else 1 for code in codes if code), 0)
