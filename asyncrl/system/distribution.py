"""Whether what is installed is what is here: the packages of asyncrl, and the plugin that SGLang loads.

Others use the names `verifiers` and `sandbox` too: PyPI's `verifiers` is a library of this very field. Looked
at before any command imports either, by where they are found and what their `__init__.py` says, which takes
less than a millisecond.
"""

import importlib.metadata
import importlib.util
from pathlib import Path

from asyncrl.errors import InputError

PACKAGES = ("verifiers", "sandbox")
PLUGINS = "sglang.srt.plugins"
"""Group of entry points."""
MARK = "Part of asyncrl."
"""Stands in the `__init__.py` of both: another distribution that is installed over them replaces it."""


def check_distribution() -> None:
    """Raises InputError that names the distribution whose package would be imported, and the way out."""
    home = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
        if any(place.resolve() == home / name and _is_ours(place) for place in places[:1]):
            continue
        raise InputError(
            f'"import {name}" finds {_owner(name, places)}, not the package of asyncrl at {home / name}. '
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
