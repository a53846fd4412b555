"""Which models an evaluation puts side by side, and where the answers of each are kept."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError, did_you_mean
from asyncrl.evaluation.kept_answers import KeptAnswers, weights_digest
from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.launch.prepare import export_steps
from asyncrl.model.dtype import with_dtype
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import find_unsampled
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import absolute, shown
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import (
    MANIFEST,
    HeldOutAccuracies,
    checkpoint_path,
    export_path,
    find_fault,
    saved_versions,
)
from asyncrl.run.status import is_running, read_status
from asyncrl.system.files import sha256_of
from asyncrl.system.paths import nearest_path
from asyncrl.system.places import ANSWERS, CHECKPOINTS, RECIPE, cache_folder
from asyncrl.tasks.verifier_cache import VerifierCache

BASE, BEST, LAST = "base", "best", "last"


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    label: str
    """Title of its column."""
    folder: Path


def find_models(recipe: Recipe, places: Sequence[str], checkpoints: Sequence[Path]) -> list[EvaluatedModel]:
    """`places` are "base", "best", "last" or numbers of steps; `checkpoints` are folders of models.

    A checkpoint that two places name comes once, and is exported where it is not yet. The base model must be
    on this machine where it is named. Raises InputError.
    """
    run = recipe.folder()
    kept = usable_versions(run)
    names: dict[PolicyVersion | None, list[str]] = {}
    for place in places:
        version = None if place == BASE else _version(place, run, kept)
        names.setdefault(version, []).extend([place] if place in (BEST, LAST) else [])
    _export(run, [version for version in names if version is not None])
    models = []
    for version, aliases in names.items():
        if version is None:
            models.append(EvaluatedModel(BASE, model_folder(recipe.model)))
        else:
            label = f"step {version}" + (f" ({', '.join(dict.fromkeys(aliases))})" if aliases else "")
            models.append(EvaluatedModel(label, export_path(run, version)))
    models += [_given(path) for path in checkpoints]
    _check_tokenizers(models)
    return models


def usable_versions(run: Path) -> list[PolicyVersion]:
    """Versions of `run` that can be evaluated, ascending."""
    status = read_status(run)
    is_training = status is not None and is_running(status)
    return [
        version
        for version in saved_versions(run / CHECKPOINTS)
        if export_path(run, version).is_dir() or (not is_training and _is_saved_whole(run, version))
    ]


def newest_model(run: Path) -> Path | None:
    """The Hugging Face folder of the newest of them, exported where it is not yet. Raises InputError."""
    kept = usable_versions(run)
    if not kept:
        return None
    _export(run, kept[-1:])
    return export_path(run, kept[-1])


def _is_saved_whole(run: Path, version: PolicyVersion) -> bool:
    """By its manifest, which is written last; its files are read where it is exported."""
    return (checkpoint_path(run / CHECKPOINTS, version) / MANIFEST).is_file()


def _export(run: Path, versions: Sequence[PolicyVersion]) -> None:
    missing = [version for version in versions if not export_path(run, version).is_dir()]
    for version in missing:
        if (fault := find_fault(checkpoint_path(run / CHECKPOINTS, version))) is not None:
            raise InputError(
                f"The checkpoint of step {version} in {shown(run)} is damaged: {fault}. Name another step: "
                f"asyncrl eval {shown(run)} --at STEP."
            )
    if missing:
        export_steps(run, missing)


def _version(place: str, run: Path, kept: Sequence[PolicyVersion]) -> PolicyVersion:
    folder = run / CHECKPOINTS
    known = ", ".join(map(str, kept)) or "none yet"
    if place not in (BEST, LAST) and not place.isdecimal():
        meant = did_you_mean(place, (BASE, BEST, LAST))
        raise InputError(f'--at has "{place}", expected {BASE}, {BEST}, {LAST}, or a step: {known}.{meant}')
    if not kept:
        raise InputError(f"--at has {place}, but {shown(folder)} holds no checkpoint yet.")
    if place == LAST:
        return kept[-1]
    if place == BEST:
        evaluated = HeldOutAccuracies(folder).best_first(kept)
        if not evaluated:
            raise InputError(
                f"--at has best, but no held-out accuracy is known of the checkpoints in {shown(folder)} "
                f"({known}). Use last or a step, or train with trainer.keep_best and evaluation.every_steps."
            )
        return evaluated[0]
    if int(place) not in kept:
        others = ", and its run still trains: others can be asked when it has stopped"
        why = others if _is_saved_whole(run, int(place)) else ""
        raise InputError(f"--at has {place}, but {shown(folder)} holds the steps {known}{why}.")
    return int(place)


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file()


def _given(path: Path) -> EvaluatedModel:
    folder = Path(absolute(str(path), Path.cwd()))
    if not _is_model(folder):
        there = "has no config.json" if folder.is_dir() else "does not exist"
        raise InputError(
            f"--checkpoint is {path}, which {there}. Expected a Hugging Face folder, such as "
            f"RUN/checkpoints/step-40/hf.{nearest_path(path, _is_model)}"
        )
    return EvaluatedModel(str(shown(folder)), folder)


def _check_tokenizers(models: Sequence[EvaluatedModel]) -> None:
    files = [model.folder / "tokenizer.json" for model in models]
    digests = [sha256_of(file) if file.is_file() else None for file in files]
    for model, digest in zip(models, digests, strict=True):
        if digest != digests[0]:
            raise InputError(
                f"{model.label} ({shown(model.folder)}) has another tokenizer.json than {models[0].label} "
                f"({shown(models[0].folder)}), so the two cannot be asked the same. Evaluate them one by one."
            )


def answers_file(recipe: Recipe) -> Path:
    """In the folder of a run that may be written to, else one for all that the user evaluates."""
    folder = recipe.folder()
    is_run = (folder / RECIPE).is_file() and os.access(folder, os.W_OK)
    return (folder if is_run else cache_folder("evaluations")) / ANSWERS


def keep_answers(
    recipe: Recipe, model: EvaluatedModel, verifiers: VerifierCache, store: AnswerStore, *, regrades: bool
) -> KeptAnswers | None:
    """Reads all weights of the model. None where servers of others answer, whose weights are not known.

    Raises InputError."""
    if recipe.serving.servers:
        return None
    is_settled = recipe.model.dtype != "auto"
    section = recipe.model if is_settled else with_dtype(recipe, read_shape(model.folder))
    servers = {
        "dtype": section.dtype,
        "float32_logits": section.float32_logits,
        **({"bitwise_agreement": True} if section.bitwise_agreement else {}),
        "extra_arguments": recipe.serving.extra_arguments,
        "unsampled": str(find_unsampled(model.folder, recipe.rollout.stop_tokens)),
    }
    limits = {"timeout_seconds": recipe.verifying.timeout_seconds}
    return KeptAnswers(store, weights_digest(model.folder), servers, verifiers, limits, regrades)
