"""Repositories of a model hub, fetched once by huggingface_hub into its usual cache.

HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they always mean; its own progress bar shows, and
what was broken off resumes.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.system.paths import nearest_path

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NUMBER = re.compile(r"\d+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    folder: Path
    commit: str


def is_hub_id(path: str, folder: Path = Path()) -> bool:
    """Whether `path` can only be a hub id: "name/name", and nothing has that path as seen from `folder`."""
    return HUB_ID.fullmatch(path) is not None and not (folder / path).exists()


def find_cached(
    hub_id: str, revision: str | None, *, kind: str, files: Sequence[str], ignored: Sequence[str] = ()
) -> HubSnapshot | None:
    """The snapshot that `fetch` would return, where this machine has all of it; asks no hub."""
    from huggingface_hub import errors

    try:
        return _snapshot(hub_id, revision, kind, files, ignored, is_local=True)
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        return None


def fetch(
    hub_id: str,
    revision: str | None,
    *,
    kind: str,
    key: str,
    files: Sequence[str],
    ignored: Sequence[str] = (),
) -> HubSnapshot:
    """The files of a repository that match `files` and none of `ignored` (as fnmatch does), at `revision`
    (a branch, a tag or a commit; default: main).

    `kind` is "model" or "dataset"; `key` is the recipe's key that named it. Asks no hub for a commit that is
    here. Raises InputError with the way out.
    """
    # Imported here: it takes 0.3 s, and what is on this machine does not need it.
    import httpx

    # A commit never changes; a branch or a tag may have moved.
    if revision is not None and _COMMIT.fullmatch(revision):
        found = find_cached(hub_id, revision, kind=kind, files=files, ignored=ignored)
        if found is not None:
            return found
    try:
        return _snapshot(hub_id, revision, kind, files, ignored, is_local=False)
    # huggingface_hub's own errors are OSErrors or, for a name that cannot be, ValueErrors.
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise InputError(_refusal(error, hub_id, revision, kind=kind, key=key)) from error


def _snapshot(
    hub_id: str,
    revision: str | None,
    kind: str,
    files: Sequence[str],
    ignored: Sequence[str],
    *,
    is_local: bool,
) -> HubSnapshot:
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(
        hub_id,
        repo_type=kind,
        revision=revision,
        allow_patterns=list(files),
        ignore_patterns=list(ignored),
        local_files_only=is_local,
    )
    # A snapshot's folder is named by its commit.
    return HubSnapshot(Path(folder), Path(folder).name)


def _nearest(hub_id: str, kind: str) -> str:
    """ " Did you mean ...?" where the cache has almost this id, or this machine almost this path."""
    from huggingface_hub import constants

    before = f"{kind}s--"
    cached = sorted(entry.name for entry in Path(constants.HF_HUB_CACHE).glob(f"{before}*"))
    known = (name.removeprefix(before).replace("--", "/", 1) for name in cached)
    found = next((other for other in known if other != hub_id and _are_almost_one(hub_id, other)), None)
    return nearest_path(hub_id) if found is None else f" Did you mean {found}?"


def _are_almost_one(one: str, other: str) -> bool:
    """Whether the numbers, which tell models of a family apart, are the same, and nearly all letters, or all
    but the owner."""
    one, other = one.casefold(), other.casefold()
    if _NUMBER.findall(one.rpartition("/")[2]) != _NUMBER.findall(other.rpartition("/")[2]):
        return False
    is_renamed = one.rpartition("/")[2] == other.rpartition("/")[2]
    return is_renamed or difflib.SequenceMatcher(None, one, other).ratio() >= 0.85


def _refusal(error: Exception, hub_id: str, revision: str | None, *, kind: str, key: str) -> str:
    """The error in one sentence, and the fix."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    named = f'{key} is "{hub_id}"'
    near = _nearest(hub_id, kind)
    match error:
        case errors.HFValidationError():
            return (
                f"{named}, but this machine has no such path, and it is not a valid hub name: "
                f"{str(error).strip()} Correct it.{near}"
            )
        case errors.GatedRepoError():
            return (
                f"{named}, whose owner asks you to accept terms first. Open "
                f"{hub}/{'datasets/' if kind == 'dataset' else ''}{hub_id}, accept them, then log in with "
                f"`hf auth login` or set HF_TOKEN."
            )
        case errors.RepositoryNotFoundError():
            return (
                f"{named}, but this machine has no such path and {hub} no such public {kind}. Correct the "
                f"name; for a private {kind} log in with `hf auth login` or set HF_TOKEN.{near}"
            )
        case errors.RevisionNotFoundError():
            return (
                f'{named} at revision "{revision}", which it does not have. Expected a branch, a tag or a '
                f"whole commit hash of it."
            )
        case errors.LocalEntryNotFoundError():
            return (
                f"{named}, but this machine has no such path, the cache {constants.HF_HUB_CACHE} not all of "
                f"its files, and {hub} cannot be reached. Connect once, set HF_ENDPOINT to a mirror, or give "
                f"the path of a copy.{near}"
            )
        case _:
            return (
                f"{hub_id} could not be fetched from {hub}: {error}. Run it again: files that arrived "
                f"are kept."
            )
