"""The Python that programs run on: where it lives on the host, where in the jail, and
which packages go along."""

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_QUERY = """
import importlib.util, json, os, sys
def folders(name):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        return []
    if not spec.submodule_search_locations:
        return [spec.origin]
    home = os.path.dirname(os.path.dirname(spec.origin))
    nearby = [os.path.join(home, name), os.path.join(home, name + ".libs")]
    return [path for path in nearby if os.path.isdir(path)]
print(json.dumps({
    "prefix": sys.base_prefix,
    "executable": getattr(sys, "_base_executable", sys.executable),
    "version": list(sys.version_info[:2]),
    # A link with an absolute target would lead nowhere once the root has changed.
    "packages": [os.path.realpath(path) for name in json.loads(sys.argv[1]) for path in folders(name)],
}))
"""
_JAIL_PREFIX = "/python"


@dataclass(frozen=True)
class Interpreter:
    """A Python installation."""

    prefix: str
    """Its installation on the host, such as /usr."""
    executable: str
    """The real binary, not a virtual environment's link."""
    version: tuple[int, int]
    packages: tuple[str, ...]
    """Directories of the packages that programs may import."""

    @property
    def is_system(self) -> bool:
        """Whether it lies in /usr, which is in every jail anyway."""
        return self.prefix == "/usr"

    @property
    def jail_executable(self) -> str:
        """Path of the binary inside the jail."""
        if self.is_system:
            return self.executable
        return f"{_JAIL_PREFIX}/{os.path.relpath(self.executable, self.prefix)}"

    @property
    def jail_prefix(self) -> str:
        """Where the installation is mounted in the jail."""
        return self.prefix if self.is_system else _JAIL_PREFIX

    def library_path(self, prefix: str) -> dict[str, str]:
        """The environment entry that lets a shared libpython be found away from where it was installed."""
        return {} if self.is_system else {"LD_LIBRARY_PATH": f"{prefix}/lib"}


@functools.cache
def find_interpreter(python: str, packages: tuple[str, ...]) -> Interpreter:
    """Asks the interpreter about itself; packages that it does not have are left out.

    Raises ValueError when `python` cannot be run."""
    # -I: neither the current folder nor the user's own packages or PYTHON* variables have a say.
    argv = [python, "-I", "-c", _QUERY, json.dumps(packages)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(
            f"the sandbox's python {python!r} cannot be run: {error}; expected a Python >= 3.9"
        ) from error
    found = json.loads(done.stdout)
    version = (found["version"][0], found["version"][1])
    if version < (3, 9):
        raise ValueError(f"the sandbox's python {python!r} has version {version}; expected 3.9 or later")
    executable = str(Path(found["executable"]).resolve())
    prefix = str(Path(found["prefix"]).resolve())
    return Interpreter(prefix, executable, version, tuple(found["packages"]))


def default_python() -> str:
    """The interpreter that runs this code."""
    return sys.executable
