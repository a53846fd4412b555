"""Paths that can name no file, and files that are of another kind, as sentences wherever they are used."""

import errno
from pathlib import Path

from asyncrl.errors import InputError

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
