"""Where asyncrl and its things are: its cache, the folders shipped beside the packages, the names in a run
folder.

`check_distribution` runs before any command imports `verifiers` or `sandbox`: others use these names too
(PyPI's `verifiers` is a library of this very field). It looks at where they are found and at their
`__init__.py`, which takes less than a millisecond.
"""

import functools
import importlib.metadata
import importlib.util
import os
from pathlib import Path

from asyncrl.errors import InputError


def cache_folder(kind: str) -> Path:
    """The folder of what is named by `kind`, which need not exist; XDG_CACHE_HOME moves it.

    Raises InputError where the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncrl" / kind
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


PACKAGES = ("verifiers", "sandbox")
PLUGINS = "sglang.srt.plugins"
"""Group of entry points."""
MARK = "Part of asyncrl."
"""Stands in the `__init__.py` of both: another distribution that is installed over them replaces it."""


def check_distribution() -> None:
    """Raises InputError that names the distribution whose package would be imported, and the way out."""
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
        if any(place.resolve() == HOME / name and _is_ours(place) for place in places[:1]):
            continue
        raise InputError(
            f'"import {name}" finds {_owner(name, places)}, not the package of asyncrl at {HOME / name}. '
            f"Install asyncrl in a separate environment, and first on PYTHONPATH if that is set. A "
            f"verifier that needs the other package runs in another environment: verifier `remote`."
        )


def check_plugin() -> None:
    """Raises InputError where the installation names a plugin of SGLang that is not there: the files of an
    editable one are newer than what was installed of it."""
    for entry in importlib.metadata.entry_points(group=PLUGINS, name="asyncrl"):
        try:
            is_there = importlib.util.find_spec(entry.module) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise InputError(
                f"asyncrl was installed with the SGLang plugin {entry.value}, which is not there: its files "
                f"have changed since, and servers would start without it. Run `make setup` again."
            )


def _is_ours(folder: Path) -> bool:
    try:
        return MARK in (folder / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        return False


def _owner(name: str, places: list[Path]) -> str:
    owners = importlib.metadata.packages_distributions().get(name, [])
    others = sorted({owner for owner in owners if owner != "asyncrl"})
    at = f" at {places[0]}" if places else ""
    return f"the one of distribution {', '.join(others)}{at}" if others else f"another one{at or ', or none'}"
