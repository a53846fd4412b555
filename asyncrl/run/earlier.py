"""A model that an earlier run trained: `model.path: runs/sft`, `runs/sft@best` or `runs/sft@40`; and so
`critic.path`, `teacher.path` and `agent.opponents`.

The path becomes that of the Hugging Face folder of one checkpoint, which the run folder's recipe then holds:
a later start trains from the same step, whatever the earlier run has made since.
"""

from pathlib import Path

from asyncrl.errors import InputError, did_you_mean
from asyncrl.journal.reader import find_journal
from asyncrl.journal.starts import RunEnd, recorded_end
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, shown
from asyncrl.recipe.sections.section import value_at
from asyncrl.run.checkpoints import (
    EXPORT,
    HeldOutAccuracies,
    checkpoint_path,
    export_path,
    exported_versions,
    find_fault,
)
from asyncrl.system.paths import nearest_path
from asyncrl.system.places import CHECKPOINTS, JOURNAL, RECIPE

BEST = "best"


def with_earlier_run(recipe: Recipe) -> Recipe:
    """`recipe` with the export of a step where model.path, critic.path or an opponent names a run; else as it
    is. Raises InputError for a run that has not ended, and for a step that it has no export of."""
    model = _resolved(recipe, "model.path", recipe.model.path)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": model})})
    named = recipe.agent.opponents
    opponents = {name: _resolved(recipe, f"agent.opponents.{name}", path) for name, path in named.items()}
    recipe = recipe.model_copy(update={"agent": recipe.agent.model_copy(update={"opponents": opponents})})
    if recipe.critic.path is None:
        return recipe
    critic = _resolved(recipe, "critic.path", recipe.critic.path)
    return recipe.model_copy(update={"critic": recipe.critic.model_copy(update={"path": critic})})


def with_earlier_teacher(recipe: Recipe) -> Recipe:
    """The same for teacher.path."""
    if recipe.teacher.path is None:
        return recipe
    path = _resolved(recipe, "teacher.path", recipe.teacher.path)
    return recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"path": path})})


def unexported_steps(recipe: Recipe) -> list[tuple[Path, int]]:
    """(run, step) of each model of the recipe that is a step of an ended run, which has its checkpoint whole
    and no Hugging Face folder of it yet."""
    paths = (recipe.model.path, recipe.critic.path, recipe.teacher.path, *recipe.agent.opponents.values())
    named = [_named(path) for path in paths if path is not None]
    steps = [(run, int(which)) for run, which in named if run is not None and which.isdecimal()]
    return [(run, step) for run, step in steps if _is_ended(run) and _is_unexported(run, step)]


def _is_ended(run: Path) -> bool:
    journal = find_journal(run / JOURNAL)
    return journal is not None and recorded_end(journal) is not None


def _is_unexported(run: Path, step: int) -> bool:
    checkpoint = checkpoint_path(run / CHECKPOINTS, step)
    return not export_path(run, step).is_dir() and checkpoint.is_dir() and find_fault(checkpoint) is None


def _resolved(recipe: Recipe, key: str, path: str) -> str:
    run, which = _named(path)
    if run is None:
        _check_step(key, path)
        return path
    known = _recorded(recipe, run, key) if not which.isdecimal() else None
    return known or str(_export(run, which, key))


def _check_step(key: str, path: str) -> None:
    """Raises InputError for RUN@STEP where there is no such run, or the step can be none."""
    before, at, which = path.rpartition("@")
    if not at or Path(path).exists():
        return
    named = f"{key} is {shown(Path(before))}@{which}, but"
    if not _is_run(Path(before)):
        raise InputError(f"{named} no run is there.{nearest_path(before, _is_run)}")
    raise InputError(
        f'{named} "{which}" is no step of a run. Write {BEST} or a number, or leave @{which} out for the '
        f"last step.{did_you_mean(which, (BEST,))}"
    )


def _named(path: str) -> tuple[Path | None, str]:
    """The run that a path names, if it names one, and the step of it."""
    if _is_run(Path(path)):
        return Path(path), ""
    before, at, which = path.rpartition("@")
    is_step = which == BEST or which.isdecimal()
    return (Path(before), which) if at and is_step and _is_run(Path(before)) else (None, "")


def _is_run(folder: Path) -> bool:
    return (folder / RECIPE).is_file() and (folder / JOURNAL).is_file()


def _recorded(recipe: Recipe, run: Path, key: str) -> str | None:
    """The export of `run` that the recipe's own run began with; None before its first start."""
    written = recipe.folder() / RECIPE
    if not written.is_file():
        return None
    there = value_at(load_recipe(written), key)
    if there is None:
        return None
    is_of_run = Path(there).name == EXPORT and Path(there).is_relative_to((run / CHECKPOINTS).absolute())
    return str(there) if is_of_run else None


def _export(run: Path, which: str, key: str) -> Path:
    journal = find_journal(run / JOURNAL)
    end = None if journal is None else recorded_end(journal)
    name = f"{key} is {shown(run)}{f'@{which}' if which else ''}, but"
    if end is None:
        raise InputError(
            f"{name} that run has not ended. Let it end first: asyncrl train {shown(run / RECIPE)}."
        )
    version = _version(run, which, end)
    exported = exported_versions(run)
    if version in exported:
        return export_path(run, version).absolute()
    steps = ", ".join(map(str, exported)) or "none"
    if version is None:
        raise InputError(
            f"{name} that run measured nothing on held-out data while it kept its best: set its "
            f"trainer.keep_best before it trains. It has the steps {steps}."
        )
    raise InputError(
        f"{name} that run has neither a Hugging Face folder nor a whole checkpoint of step {version}; it has "
        f"folders of {steps}. A run keeps the newest trainer.keep_checkpoints, and with trainer.keep_best "
        f"its best one."
    )


def _version(run: Path, which: str, end: RunEnd) -> int | None:
    if which == BEST:
        accuracies = HeldOutAccuracies(run / CHECKPOINTS)
        return next(iter(accuracies.best_first(exported_versions(run))), None)
    return int(which) if which else end.version
