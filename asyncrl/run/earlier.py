"""A model that an earlier run trained: `model.path: runs/sft`, `runs/sft@best` or `runs/sft@40`; likewise
`teacher.path`.

The path becomes that of the Hugging Face folder of one checkpoint, which the run folder's recipe then holds:
a later start trains from the same step, whatever the earlier run has made since.
"""

from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.journal.ending import RunEnd, recorded_end
from asyncrl.journal.reader import find_journal
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, shown
from asyncrl.run.checkpoints import HeldOutAccuracies, checkpoint_path, saved_versions
from asyncrl.system.run_files import CHECKPOINTS, JOURNAL, RECIPE

BEST = "best"
EXPORT = "hf"


def with_earlier_run(recipe: Recipe) -> Recipe:
    """`recipe` with the export of a step where model.path names a run; else as it is. Raises InputError for a
    run that has not ended, and for a step that it has no export of."""
    return _with_export(recipe, "model", recipe.model.path)


def with_earlier_teacher(recipe: Recipe) -> Recipe:
    """The same for teacher.path."""
    return recipe if recipe.teacher.path is None else _with_export(recipe, "teacher", recipe.teacher.path)


def _with_export(recipe: Recipe, name: str, path: str) -> Recipe:
    """`name` is the section that has the `path`."""
    run, which = _named(path)
    if run is None:
        return recipe
    known = _recorded(recipe, run, name) if not which.isdecimal() else None
    folder = known or str(_export(run, which, f"{name}.path"))
    return recipe.model_copy(update={name: getattr(recipe, name).model_copy(update={"path": folder})})


def _named(path: str) -> tuple[Path | None, str]:
    """The run that a path names, if it names one, and the step of it."""
    if _is_run(Path(path)):
        return Path(path), ""
    before, at, which = path.rpartition("@")
    is_step = which == BEST or which.isdecimal()
    return (Path(before), which) if at and is_step and _is_run(Path(before)) else (None, "")


def _is_run(folder: Path) -> bool:
    return (folder / RECIPE).is_file() and (folder / JOURNAL).is_file()


def _recorded(recipe: Recipe, run: Path, name: str) -> str | None:
    """The export of `run` that the recipe's own run began with, in its section `name`; None before its first
    start."""
    written = recipe.folder() / RECIPE
    if not written.is_file():
        return None
    there: str | None = getattr(load_recipe(written), name).path
    if there is None:
        return None
    is_of_run = Path(there).name == EXPORT and Path(there).is_relative_to((run / CHECKPOINTS).absolute())
    return there if is_of_run else None


def _export(run: Path, which: str, key: str) -> Path:
    journal = find_journal(run / JOURNAL)
    end = None if journal is None else recorded_end(journal)
    name = f"{key} is {shown(run)}{f'@{which}' if which else ''}, but"
    if end is None:
        raise InputError(
            f"{name} that run has not ended. Let it end first: asyncrl train {shown(run / RECIPE)}."
        )
    version = _version(run, which, end)
    exported = [v for v in saved_versions(run / CHECKPOINTS) if _folder(run, v).is_dir()]
    if version in exported:
        return _folder(run, version)
    steps = ", ".join(map(str, exported)) or "none"
    if version is None:
        raise InputError(
            f"{name} that run measured nothing on held-out data while it kept its best: set its "
            f"trainer.keep_best before it trains. It has the steps {steps}."
        )
    raise InputError(
        f"{name} that run has no Hugging Face folder of step {version}; it has those of {steps}. A run "
        f"exports its last step, and with trainer.keep_best its best one."
    )


def _version(run: Path, which: str, end: RunEnd) -> int | None:
    if which == BEST:
        checkpoints = run / CHECKPOINTS
        exported = [v for v in saved_versions(checkpoints) if _folder(run, v).is_dir()]
        return next(iter(HeldOutAccuracies(checkpoints).best_first(exported)), None)
    return int(which) if which else end.version


def _folder(run: Path, version: int) -> Path:
    return checkpoint_path(run / CHECKPOINTS, version).absolute() / EXPORT
