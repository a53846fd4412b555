"""Where a model comes from: a folder, a GGUF file, or a hub id; in each case a folder of this machine.

A hub id ("Qwen/Qwen2.5-0.5B") is fetched once. A GGUF file is converted once, into a folder of asyncrl's own
cache. A folder is used as it is. Commands call `resolve` before any work; every process of a run then finds
the same folder with `model_folder`, which fetches and converts nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.gguf import Progress, convert_gguf, gguf_key, is_gguf
from asyncrl.recipe import Model
from asyncrl.recipe.file import shown
from asyncrl.system.hub import HUB_ID, fetch, find_cached
from asyncrl.system.places import cache_folder

CONFIG = ("config.json",)
FILES = ("*.json", "*.jinja", "*.safetensors", "merges.txt", "vocab.txt", "tokenizer.model")
"""Files at the top level of a hub's repository that a model folder needs."""
WITHOUT_WEIGHTS = tuple(pattern for pattern in FILES if pattern != "*.safetensors")
NESTED = ("*/*",)
"""Files that are not at the top level."""
Stage = Callable[[str], AbstractContextManager[Any]]
"""`observe.stage.stage`: shows the progress of what its title names."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    folder: Path
    commit: str | None = None
    """Commit of the hub's repository; None for a folder or a file."""


def resolve(section: Model, *, stage: Stage, files: Sequence[str] = FILES) -> ModelSource:
    """The folder of the model, fetched or converted where it is not there yet.

    Of a hub's repository, `files` are enough. Raises InputError with the way out.
    """
    check_revision(section)
    if is_of_hub(section):
        snapshot = fetch(
            section.path, section.revision, kind="model", key="model.path", files=files, ignored=NESTED
        )
        return ModelSource(snapshot.folder, snapshot.commit)
    file = Path(section.path)
    return ModelSource(_converted(file, stage) if is_gguf(file) else file)


def check_revision(section: Model) -> None:
    """Raises InputError where a revision is named of what has none. Reads and fetches nothing."""
    if section.revision is not None and not is_of_hub(section):
        raise InputError(
            f'model.revision is "{section.revision}", but model.path is {section.path}, which is not a hub '
            f"id: only hub models have revisions. Leave it out."
        )


def is_of_hub(section: Model) -> bool:
    """Whether `section`, of a loaded recipe, names a model of a hub: any other path there is absolute."""
    return HUB_ID.fullmatch(section.path) is not None


def find_source(section: Model, files: Sequence[str] = FILES) -> ModelSource | None:
    """The result of `resolve`, where it is on this machine already; a folder need not exist."""
    file = Path(section.path)
    if is_of_hub(section):
        found = find_cached(section.path, section.revision, kind="model", files=files, ignored=NESTED)
        return None if found is None else ModelSource(found.folder, found.commit)
    if is_gguf(file):
        folder = _place(file)
        return ModelSource(folder) if folder.exists() else None
    return ModelSource(file)


def model_folder(section: Model, files: Sequence[str] = FILES) -> Path:
    """The folder of the model, which `resolve` has put there. Raises InputError where it is not."""
    found = find_source(section, files)
    if found is None:
        raise InputError(
            f"model.path is {section.path}, which is not on this machine yet, or no longer. `asyncrl check` "
            f"and `asyncrl train` fetch or convert it."
        )
    return found.folder


def model_title(section: Model) -> str:
    """Display name: the model and, where it is another one, its folder."""
    folder = model_folder(section)
    if is_of_hub(section):
        return f"{section.path} at commit {section.revision}, in {shown(folder)}"
    path = shown(Path(section.path))
    return f"{path}, converted in {shown(folder)}" if is_gguf(path) else str(path)


def _converted(file: Path, stage: Stage) -> Path:
    folder = _place(file)
    if not folder.exists():
        with stage(f"converting {file.name}") as shown:
            report: Progress = lambda done, total: shown.report("tensors", done, total)  # noqa: E731
            convert_gguf(file, folder, report)
    return folder


def _place(file: Path) -> Path:
    return cache_folder("gguf") / f"{file.stem}-{gguf_key(file)}"
