"""Where asyncrl keeps what it makes once for all runs of a user: converted models, tasks, packed rows."""

import os
from pathlib import Path

from asyncrl.errors import InputError


def cache_folder(kind: str) -> Path:
    """The folder of what is named by `kind`, which need not exist; XDG_CACHE_HOME moves it.

    Raises InputError where the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "asyncrl" / kind


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise InputError(
            f"The user with id {os.getuid()} has no home folder here, and HOME is not set. Set HOME, or "
            f"XDG_CACHE_HOME, to a folder that may be written: asyncrl keeps there what all runs share."
        ) from None
