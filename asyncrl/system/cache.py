"""Where asyncrl keeps what it makes once for all runs of a user: converted models, tasks, packed rows."""

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """The folder of what is named by `kind`, which need not exist; XDG_CACHE_HOME moves it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncrl" / kind
