"""How a pool is set up, what a worker is told of it, and a worker's process as its host sees it."""

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from sandbox import cgroup, jail, leftovers
from sandbox.cgroup import available_cores
from sandbox.interpreter import Interpreter, default_python, find_for_user, find_interpreter
from sandbox.jail import NOBODY
from sandbox.messages import WorkerSettings
from sandbox.result import SandboxError, Tier

_BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "USER": "sandbox",
    # The same program must end in the same verdict: no random order of sets.
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # A thread pool per core would exhaust the limits on processes and address space.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Each arena of malloc reserves 128 MiB of address space, and each thread would have its own.
    "MALLOC_ARENA_MAX": "2",
}


def worker_command() -> tuple[str, ...]:
    """Command that starts a worker; its arguments follow."""
    root = str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path.insert(0, {root!r}); from sandbox.worker import main; main()"
    return (sys.executable, "-I", "-S", "-c", code)


@dataclass(frozen=True)
class SandboxSettings:
    """Choices of a pool; the defaults suit a training run."""

    workers: int = field(default_factory=available_cores)
    """Runs at once."""
    python: str = field(default_factory=default_python)
    """Interpreter of Python programs: any installed one from 3.9 on; need not be the caller's."""
    packages: tuple[str, ...] = ("numpy",)
    """Packages of that interpreter that programs may import, where it has them."""
    preload: tuple[str, ...] = ()
    """Modules imported before the first run: faster for programs that use them, slower for all others."""
    tiers: tuple[Tier, ...] = (Tier.NAMESPACES, Tier.LANDLOCK)
    """Tried in this order."""
    allow_unsafe: bool = False
    """Run with rlimits only where no tier can be had, or when tiers names it. Recorded in every Result."""
    command: tuple[str, ...] = field(default_factory=worker_command)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"sandbox workers is {self.workers}; expected at least 1")
        if Tier.UNSAFE in self.tiers and not self.allow_unsafe:
            raise ValueError("sandbox tiers names 'unsafe', which isolates nothing: set allow_unsafe as well")
        if not self.tiers:
            raise ValueError("sandbox tiers is empty; expected 'namespaces', 'landlock' or both")

    @property
    def all_tiers(self) -> tuple[Tier, ...]:
        """Tiers to try, in order."""
        unsafe = (Tier.UNSAFE,) if self.allow_unsafe else ()
        return tuple(dict.fromkeys((*self.tiers, *unsafe)))


def choose_interpreter(settings: SandboxSettings, tier: Tier) -> tuple[Interpreter, str]:
    """The interpreter of programs in this tier, and a note where it is not the one that `settings` name.

    Raises ValueError for one that cannot be run, and OutOfReach."""
    if tier is Tier.NAMESPACES or os.getuid() != 0:
        return find_interpreter(settings.python, settings.packages), ""
    # Root's programs run as other users, who see the machine's own files.
    return find_for_user(settings.python, settings.packages, NOBODY)


def worker_settings(settings: SandboxSettings, tier: Tier, interpreter: Interpreter) -> WorkerSettings:
    """Settings of a worker of this tier."""
    view = jail.plan_view(interpreter, ())
    inside = tier is Tier.NAMESPACES
    prefix = interpreter.jail_prefix if inside else interpreter.prefix
    packages = ["/packages"] if inside else [os.path.dirname(path) for path in interpreter.packages]
    major, minor = interpreter.version
    library = f"{prefix}/lib/python{major}.{minor}"
    search = [f"{prefix}/lib/python{major}{minor}.zip", library, f"{library}/lib-dynload"]
    environment = _BASE_ENVIRONMENT | interpreter.library_path(prefix)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(packages))
    if not interpreter.is_system:
        environment["PATH"] = f"{prefix}/bin:{environment['PATH']}"
    return {
        "tier": tier.value,
        "python": interpreter.jail_executable if inside else interpreter.executable,
        "environment": environment,
        "search": [*search, *dict.fromkeys(packages)],
        "binds": list(view.binds),
        "hidden": list(view.hidden),
        "readable": _readable(view, interpreter),
        "temporary": tempfile.gettempdir(),
        "preload": list(settings.preload),
    }


def _readable(view: jail.View, interpreter: Interpreter) -> list[str]:
    """Host paths that programs may read, where they have no view of their own."""
    paths = [source for source, _ in view.binds if interpreter.is_system or source != interpreter.prefix]
    return paths if interpreter.is_system else [*paths, *interpreter.folders]


_SWEEP_ATTEMPTS = 500
_END_SECONDS = 10.0


class WorkerProcess:
    """A worker that has just been started and waits for its settings. `kill` ends it and all it started."""

    def __init__(self, command: tuple[str, ...]) -> None:
        """Raises SandboxError when it cannot be started."""
        self.line, theirs = socket.socketpair()
        with theirs:
            argv = [*command, str(theirs.fileno()), str(os.getpid())]
            try:
                self.process = subprocess.Popen(
                    argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            except OSError as error:
                self.line.close()
                raise SandboxError(
                    f"the sandbox's worker {command[0]!r} cannot be started: {error}"
                ) from error

    def kill(self) -> None:
        """Ends the worker: it notices the hang-up and cleans up after itself; one that does not is killed."""
        self.line.close()
        try:
            self.process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode != 0:
            # Killed: it could take nothing away, and no later worker may come.
            leftovers.sweep(tempfile.gettempdir(), cgroup.this_machine(), attempts=_SWEEP_ATTEMPTS)
