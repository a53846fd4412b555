"""Where a model comes from: a folder, a GGUF file, or a hub id; in each case a folder of this machine.

A hub id ("Qwen/Qwen2.5-0.5B") is fetched once by huggingface_hub, into its usual cache and with its own
progress bar, resuming what was broken off; HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they
always mean. A GGUF file is converted once, into a folder of asyncrl's own cache. A folder is used as it is.
"""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.gguf import Progress, convert_gguf, gguf_key, is_gguf

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = ("*.json", "*.jinja", "*.safetensors", "merges.txt", "vocab.txt", "tokenizer.model")
"""Of a hub's repository, at its top level: what a model folder needs."""
Stage = Callable[[str], AbstractContextManager[Any]]
"""`observe.stage.stage`: shows the progress of what its title names."""


@dataclass(frozen=True, slots=True)
class Source:
    folder: Path
    commit: str | None = None
    """Of the hub's repository; None for a folder or a file."""


def is_hub_id(path: str) -> bool:
    """Whether `path` can only be a hub id: "name/name", and nothing on this machine has that path."""
    return HUB_ID.fullmatch(path) is not None and not Path(path).exists()


def resolve(path: str, revision: str | None, *, stage: Stage) -> Source:
    """The folder of the model, fetched or converted where it is not there yet.

    `revision` is a branch, a tag or a commit of a hub's repository (default: its main branch). Raises
    InputError with the way out.
    """
    if is_hub_id(path):
        return _fetch(path, revision)
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


def _fetch(hub_id: str, revision: str | None) -> Source:
    # Imported here: it takes 0.3 s, and a model in a folder does not need it.
    import httpx
    import huggingface_hub
    from huggingface_hub import constants, errors

    try:
        folder = huggingface_hub.snapshot_download(
            hub_id, revision=revision, allow_patterns=list(FILES), ignore_patterns=["*/*"]
        )
    except errors.GatedRepoError as error:
        raise InputError(
            f'model.path is "{hub_id}", whose owner asks you to accept terms first. Open '
            f"{constants.ENDPOINT}/{hub_id}, accept them, then log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f'model.path is "{hub_id}": this machine has no such folder, and {constants.ENDPOINT} no '
            f"such public model. Correct the name; for a private model log in with `hf auth login` or set "
            f"HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f'model.revision is "{revision}", which {hub_id} does not have. Expected a branch, a tag or a '
            f"whole commit hash of it."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise InputError(
            f'model.path is "{hub_id}": this machine has no such folder, the cache {constants.HF_HUB_CACHE} '
            f"not all of its files, and {constants.ENDPOINT} cannot be reached. Connect once, set "
            f"HF_ENDPOINT to a mirror, or give the path of a copy."
        ) from error
    except (OSError, httpx.HTTPError) as error:
        raise InputError(
            f"{hub_id} could not be fetched from {constants.ENDPOINT}: {error}. Run again: what has "
            f"arrived is kept."
        ) from error
    # A snapshot's folder is named by its commit.
    return Source(Path(folder), Path(folder).name)
