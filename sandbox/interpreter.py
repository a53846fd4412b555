"""The Python that programs run on: where it lives on the host, where in the jail, and
which packages go along."""

import errno
import functools
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandbox.result import SandboxError

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
_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_LEAST = (3, 9)
_WAY_OUT = (
    "set `python` (an option of verifier `code`, --python of `asyncrl sandbox`) to an interpreter that every "
    "user may execute, such as /usr/bin/python3, with the packages that programs import; or allow "
    "namespaces, which show programs an interpreter wherever it lies"
)


class OutOfReach(SandboxError):
    """The users that programs run as cannot execute the interpreter."""


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
    def folders(self) -> tuple[str, ...]:
        """Paths of the installation that programs read: its library, not whatever else lies beside it. An
        installation may have a home folder as its prefix."""
        inside = ("lib", "lib64", "share/zoneinfo")
        return (self.executable, *(f"{self.prefix}/{name}" for name in inside))

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
    try:
        found = _ask(python, packages, None)
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(
            f"the sandbox's python {python!r} cannot be run: {error}; expected a Python >= 3.9"
        ) from error
    if found.version < _LEAST:
        raise ValueError(
            f"the sandbox's python {python!r} has version {found.version}; expected 3.9 or later"
        )
    return found


@functools.cache
def find_for_user(python: str, packages: tuple[str, ...], user: int) -> tuple[Interpreter, str]:
    """The interpreter for programs that run as `user`, and a note where it is another one than `python`.

    Where `python` is the default and out of the user's reach, the system's takes its place. Raises ValueError
    when `python` cannot be run by the caller either, and OutOfReach."""
    own = find_interpreter(python, packages)
    try:
        return _ask(python, packages, user), ""
    except (OSError, subprocess.SubprocessError) as error:
        is_closed = isinstance(error, subprocess.CalledProcessError) or (
            isinstance(error, OSError) and error.errno == errno.EACCES
        )
        if not is_closed:
            # No such user here: whatever drops to it has the better words.
            return own, ""
    closed = _closed_folder(own.executable)
    reason = f"{own.executable} is out of reach for the users that programs run as" + (
        f", for whom {closed} is closed" if closed else ""
    )
    for path in _SYSTEM_PYTHONS if python == default_python() else ():
        try:
            found = _ask(path, packages, user)
        except (OSError, subprocess.SubprocessError):
            continue
        if found.version >= _LEAST:
            return found, f"{reason}; they run on {_described(found, own)} instead. To choose, {_WAY_OUT}"
    raise OutOfReach(f"{reason}; {_WAY_OUT}")


def _described(found: Interpreter, own: Interpreter) -> str:
    theirs, ours = ({os.path.basename(path) for path in one.packages} for one in (found, own))
    lacking = sorted(name for name in ours - theirs if not name.endswith(".libs"))
    version = ".".join(map(str, found.version))
    return f"{found.executable} ({version}" + (f", without {', '.join(lacking)})" if lacking else ")")


def _closed_folder(path: str) -> str | None:
    """The outermost folder of `path` that others may not enter."""
    for folder in reversed(Path(path).parents):
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            return str(folder)
    return None


def _ask(python: str, packages: tuple[str, ...], user: int | None) -> Interpreter:
    """Raises OSError or SubprocessError where it cannot be run, as `user` if there is one."""
    # -I: neither the current folder nor the user's own packages or PYTHON* variables have a say.
    argv = [python, "-I", "-c", _QUERY, json.dumps(packages)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    found = json.loads(done.stdout)
    executable = str(Path(found["executable"]).resolve())
    prefix = str(Path(found["prefix"]).resolve())
    version = (found["version"][0], found["version"][1])
    return Interpreter(prefix, executable, version, tuple(found["packages"]))


def default_python() -> str:
    """The interpreter that runs this code."""
    return sys.executable
