"""Paths of users: the one that was meant by one which is not there, those that can name no file; PATH."""

import difflib
import errno
import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.system.places import RECIPE

RUNS = Path("runs")
ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".yaml", ".yml", ".gguf", ".py")
"""Ends of names that say the kind of a file: alone they make no two names alike."""
LEAST_ALIKE = 0.6
MOST_ENTRIES = 10_000
"""Entries of a folder that are looked at."""


def nearest_path(path: str | Path, fits: Callable[[Path], bool] = os.path.exists) -> str:
    """ " Did you mean PATH?" where a path that `fits` is almost `path`, else an empty text."""
    found = _nearest(Path(path), fits)
    return "" if found is None else f" Did you mean {found}?"


def nearest_run(path: str | Path) -> str:
    """ " Did you mean RUN?": a run folder that is almost `path`, or in runs/ has almost its name."""
    given = Path(path)
    if is_run_folder(RUNS / given) and not given.is_absolute():
        return f" Did you mean {RUNS / given}?"
    places = [given] if given.is_absolute() or given.parts[:1] == RUNS.parts else [given, RUNS / given]
    return next(filter(None, (nearest_path(place, is_run_folder) for place in places)), "")


def is_run_folder(path: Path) -> bool:
    return (path / RECIPE).is_file()


def _nearest(path: Path, fits: Callable[[Path], bool]) -> Path | None:
    """Each part that is not there is replaced by the most like name beside it."""
    found = Path(path.anchor)
    parts = path.parts[1:] if path.anchor else path.parts
    try:
        for number, part in enumerate(parts, start=1):
            wanted = fits if number == len(parts) else Path.is_dir
            if part == ".." or ((found / part).exists() and wanted(found / part)):
                found /= part
                continue
            names = [entry.name for entry in islice(found.iterdir(), MOST_ENTRIES) if wanted(entry)]
            near = _most_like(part, names)
            if near is None:
                return None
            found /= near
    except OSError:
        # A folder that cannot be read holds nothing to suggest.
        return None
    return found if found != path else None


def _most_like(name: str, names: Iterable[str]) -> str | None:
    """Without regard to case; the end of a file's name does not count, except among equals."""

    def likeness(other: str) -> tuple[float, float]:
        return _alike(_stem(name), _stem(other)), _alike(name, other)

    best = max(sorted(names), key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= LEAST_ALIKE else None


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()


def _stem(name: str) -> str:
    stem, ending = os.path.splitext(name)
    return stem if ending.lower() in ENDINGS else name


_UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)
_SHOWN_CHARACTERS = 80


def expanded(path: Path) -> Path:
    """`path` with the home folder for its ~. Raises InputError for the ~ of a user that is not there."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise InputError(
            f"{path} begins with {path.parts[0]}, which is no user of this machine. Write the folder in full."
        ) from None


def unusable_path(error: Exception) -> InputError | None:
    """The refusal of a path that the user named wrongly, caused by `error`; None for other errors."""
    if (said := _said(error)) is None:
        return None
    refusal = InputError(said)
    refusal.__cause__ = error
    return refusal


def _said(error: Exception) -> str | None:
    if isinstance(error, OSError) and error.filename is not None:
        name = str(error.filename)
        shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:60]}... ({len(name)} characters)"
        match error.errno:
            case errno.EISDIR:
                return f"{shown} is a folder, expected a file."
            case errno.EACCES:
                return f"{shown} is not open to this user: {error.strerror}. Change its permissions."
            case number if number in _UNUSABLE:
                return (
                    f"{shown} is not a usable path: {error.strerror}. Name a file or folder that can exist."
                )
    # How Path.resolve of Python 3.11 and 3.12 says ELOOP.
    return f"{error}. Name a path without it." if str(error).startswith("Symlink loop") else None


def why(error: OSError) -> str:
    """The cause alone, as the second half of a sentence that names the path: "it is a folder"."""
    return "it is a folder" if error.errno == errno.EISDIR else str(error.strerror or error)


def search_path() -> str:
    """PATH with this interpreter's folder in front: its programs are found where it is not activated, too."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
