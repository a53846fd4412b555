"""Where asyncrl keeps things: its cache, the folders that are shipped beside the packages, the names in a run
folder.
"""

import functools
import importlib.metadata
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


# A checkout has them at its root, a wheel installs them into `share/asyncrl` of its environment.
HOME = Path(__file__).resolve().parents[2]
"""Folder of the packages: a checkout, or an environment's site-packages."""
SHARE = ("share", "asyncrl")


def is_checkout() -> bool:
    """Whether this code is a checkout, installed or not; its folders belong to the user."""
    return (HOME / "pyproject.toml").is_file()


@functools.cache
def shipped_folder(name: str) -> Path | None:
    """The shipped folder `name`, such as recipes or docs; None where only the packages were copied."""
    if is_checkout():
        return HOME / name if (HOME / name).is_dir() else None
    try:
        files = importlib.metadata.files("asyncrl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        for at in range(len(file.parts) - 3):
            if file.parts[at : at + 3] == (*SHARE, name):
                below = len(file.parts) - at - 3
                return Path(os.path.abspath(str(file.locate()))).parents[below - 1]
    return None


RECIPE = "recipe.yaml"
"""Resolved, with the run folder where it is now."""
JOURNAL = "journal.sqlite"
METRICS = "metrics.jsonl"
STATUS = "status.json"
ANSWERS = "answers.sqlite"
"""Answers and results of `asyncrl eval`."""
REPORT = "report.html"
CURVES = "curves.png"

CHECKPOINTS = "checkpoints"
"""A folder of folders step-VERSION; what servers read of a version is in `PUBLICATIONS`."""
PUBLICATIONS = "publications"
EVALUATION = "evaluation"
"""Versions that evaluation servers hold while the trainer publishes others."""
OPPONENT_REPLIES = "opponents.sqlite"
"""Replies of opponents in trajectories that have not ended."""
LOGS = "logs"
CALL = "call"
"""Files of a call of `asyncrl.train`, there before the run is."""
TRACKERS = "trackers"

LOCK = ".lock"
"""Held by the launcher; the name of its process is in it."""
CONTROLLER_URL = "controller.url"
"""Where the running controller listens; there only while it runs."""
TOKEN = "access.token"
"""Token that the processes of the run show each other; there only while it runs."""
