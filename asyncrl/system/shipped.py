"""Folders that are shipped beside the packages: recipes and docs.

A checkout has them at its root, a wheel installs them into `share/asyncrl` of its environment.
"""

import functools
import importlib.metadata
import os
from pathlib import Path

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
