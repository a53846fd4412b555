"""Which models an evaluation puts side by side: the base model, checkpoints of its run, any folder.

All of them answer the same tokens, so all must have the tokenizer of the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError, did_you_mean
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import absolute, shown
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import HeldOutAccuracies, checkpoint_path, saved_versions
from asyncrl.system.digests import sha256_of
from asyncrl.system.near_paths import nearest_path
from asyncrl.system.run_files import CHECKPOINTS

BASE, BEST, LAST = "base", "best", "last"


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    label: str
    """Title of its column."""
    folder: Path


def find_models(recipe: Recipe, places: Sequence[str], checkpoints: Sequence[Path]) -> list[EvaluatedModel]:
    """`places` are "base", "best", "last" or numbers of steps; `checkpoints` are folders of models.

    A checkpoint that two places name comes once. The base model must be on this machine where it is named.
    Raises InputError.
    """
    folder = recipe.folder() / CHECKPOINTS
    exported = [v for v in saved_versions(folder) if (checkpoint_path(folder, v) / "hf").is_dir()]
    names: dict[PolicyVersion | None, list[str]] = {}
    for place in places:
        version = None if place == BASE else _version(place, folder, exported)
        names.setdefault(version, []).extend([place] if place in (BEST, LAST) else [])
    models = [
        EvaluatedModel(BASE, model_folder(recipe.model))
        if version is None
        else EvaluatedModel(_label(version, aliases), checkpoint_path(folder, version) / "hf")
        for version, aliases in names.items()
    ]
    models += [_given(path) for path in checkpoints]
    _check_tokenizers(models)
    return models


def _version(place: str, folder: Path, exported: Sequence[PolicyVersion]) -> PolicyVersion:
    known = ", ".join(map(str, exported)) or "none yet"
    if place not in (BEST, LAST) and not place.isdecimal():
        meant = did_you_mean(place, (BASE, BEST, LAST))
        raise InputError(f'--at has "{place}", expected {BASE}, {BEST}, {LAST}, or a step: {known}.{meant}')
    if not exported:
        raise InputError(f"--at has {place}, but {shown(folder)} holds no exported checkpoint yet.")
    if place == LAST:
        return exported[-1]
    if place == BEST:
        evaluated = HeldOutAccuracies(folder).best_first(exported)
        if not evaluated:
            raise InputError(
                f"--at has best, but no held-out accuracy is known of the checkpoints in {shown(folder)} "
                f"({known}). Use last or a step, or train with trainer.keep_best and evaluation.every_steps."
            )
        return evaluated[0]
    if int(place) not in exported:
        raise InputError(f"--at has {place}, but {shown(folder)} holds the steps {known}.")
    return int(place)


def _label(version: PolicyVersion, aliases: Sequence[str]) -> str:
    return f"step {version}" + (f" ({', '.join(dict.fromkeys(aliases))})" if aliases else "")


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file()


def _given(path: Path) -> EvaluatedModel:
    folder = Path(absolute(str(path), Path.cwd()))
    if not (folder / "config.json").is_file():
        there = "has no config.json" if folder.is_dir() else "does not exist"
        raise InputError(
            f"--checkpoint is {path}, which {there}. Expected a Hugging Face folder, such as "
            f"RUN/checkpoints/step-40/hf.{nearest_path(path, _is_model)}"
        )
    return EvaluatedModel(str(shown(folder)), folder)


def _check_tokenizers(models: Sequence[EvaluatedModel]) -> None:
    digests = [_tokenizer_digest(model.folder) for model in models]
    for model, digest in zip(models, digests, strict=True):
        if digest != digests[0]:
            raise InputError(
                f"{model.label} ({shown(model.folder)}) has another tokenizer.json than {models[0].label} "
                f"({shown(models[0].folder)}), so the two cannot be asked the same. Evaluate them one by one."
            )


def _tokenizer_digest(folder: Path) -> str | None:
    file = folder / "tokenizer.json"
    return sha256_of(file) if file.is_file() else None
