"""Where a model comes from: a folder, a GGUF file, or a hub id; in each case a folder of this machine.

A hub id ("Qwen/Qwen2.5-0.5B") is fetched once. A GGUF file is converted once, into a folder of asyncrl's own
cache. A folder is used as it is.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.hub import fetch, is_hub_id
from asyncrl.model.gguf import Progress, convert_gguf, gguf_key, is_gguf

FILES = ("*.json", "*.jinja", "*.safetensors", "merges.txt", "vocab.txt", "tokenizer.model")
"""Of a hub's repository, at its top level: what a model folder needs."""
Stage = Callable[[str], AbstractContextManager[Any]]
"""`observe.stage.stage`: shows the progress of what its title names."""


@dataclass(frozen=True, slots=True)
class Source:
    folder: Path
    commit: str | None = None
    """Of the hub's repository; None for a folder or a file."""


def resolve(path: str, revision: str | None, *, stage: Stage) -> Source:
    """The folder of the model, fetched or converted where it is not there yet.

    `revision` is a branch, a tag or a commit of a hub's repository (default: its main branch). Raises
    InputError with the way out.
    """
    if is_hub_id(path):
        snapshot = fetch(path, revision, kind="model", key="model.path", files=FILES, ignored=("*/*",))
        return Source(snapshot.folder, snapshot.commit)
    if revision is not None:
        raise InputError(
            f'model.revision is "{revision}", but model.path is {path}, which is no hub id: only a model '
            f"of a hub has revisions. Leave it out."
        )
    return Source(_converted(Path(path), stage) if is_gguf(Path(path)) else Path(path))


def _converted(file: Path, stage: Stage) -> Path:
    folder = _cache() / "gguf" / f"{file.stem}-{gguf_key(file)}"
    if not folder.exists():
        with stage(f"converting {file.name}") as shown:
            report: Progress = lambda done, total: shown.report("tensors", done, total)  # noqa: E731
            convert_gguf(file, folder, report)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncrl"
