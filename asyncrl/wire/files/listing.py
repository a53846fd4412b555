"""The listing of a folder that is fetched: files, sizes and digests, as both sides of the wire know it."""

from pathlib import Path, PurePosixPath

import msgspec

from asyncrl.system.digests import sha256_of

LISTING = "listing.json"
"""The name under which the listing of a folder is asked for; no file of the folder has it."""

INDEX = ".metadata"
"""Index of a checkpoint, as torch.distributed.checkpoint names it."""


class ListedFile(msgspec.Struct, frozen=True):
    name: str
    """Relative to the folder, with slashes."""
    size: int
    """In bytes."""
    sha256: str


class Listing(msgspec.Struct, frozen=True):
    files: list[ListedFile]


class FolderLister:
    """Lists folders. Remembers digests of files that have not changed since: hashing reads every byte."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}
        """By path, size and time of the last change in nanoseconds."""

    def list(self, folder: Path) -> Listing:
        """The files of `folder` that `file_names` names. Raises OSError. Blocks while it hashes."""
        return Listing([self._listed(folder, name) for name in file_names(folder)])

    def _listed(self, folder: Path, name: str) -> ListedFile:
        path = folder / name
        state = path.stat()
        key = (str(path), state.st_size, state.st_mtime_ns)
        if key not in self._known:
            self._known[key] = sha256_of(path)
        return ListedFile(name, state.st_size, self._known[key])


def file_names(folder: Path) -> list[str]:
    """Names of the files below `folder`, links to files included: a model of the hub is a folder of links.
    Hidden files and folders are left out, what is being written among them, but for INDEX."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        str(PurePosixPath(name))
        for name in names
        if not any(part.startswith(".") and part != INDEX for part in name.parts)
    ]


def is_safe(name: str) -> bool:
    """Whether a name from the wire stays below the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
