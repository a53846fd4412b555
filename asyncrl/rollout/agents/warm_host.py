"""The process from which an agent's program is forked: `python -m asyncrl.rollout.agents.warm_host`, with the
arguments of a `verifiers.fork_server`.

The first programs import what they need, as in a new interpreter. One that ends well says which modules of
libraries it has, and this process imports them for those that follow. Code of the program's own files runs in
a forked process alone, as `__main__`, with the folder, the variables and the limits of its trajectory.

What a library takes from its trajectory as it is imported would be another's: then nothing is forked.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import resource
import runpy
import signal
import site
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.rollout.agents import confined
from sandbox import frames, warm
from verifiers import fork_server

OWN_FOLDER = "/proc/self/cwd"
"""HOME and TMPDIR while libraries are imported: in each process that is forked, a path that one of them has
made of it leads to the working folder of that process."""
_OURS = ("asyncrl", "sandbox", "verifiers")


class WarmHost:
    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._cold = ""
        """Why the program cannot be forked."""
        self._set: dict[str, str] = {}
        """Variables that libraries have set."""
        self._kept: set[int] = set()

    def prepare(self, payload: bytes) -> None:
        """Confines this process ({"arguments", "folder", "hidden"}), then imports what a program reported
        (the file {"report"}, and in "variables" the names of those that trajectories have)."""
        told = json.loads(payload)
        try:
            if "report" in told:
                report = json.loads(Path(told["report"]).read_text())
                self._cold = self._import(report["modules"], told["variables"], report["changed"])
            else:
                self._arguments = told["arguments"]
                os.chdir(told["folder"])
                confined.confine(told["hidden"])
            self._cold = self._cold or _shadowed(self._arguments[0])
        except Exception as error:
            self._cold = f"its libraries cannot be imported: {type(error).__name__}: {error}"
        self._kept = _descriptors()

    def _import(
        self, modules: Sequence[str], variables: Sequence[str], changed: Mapping[str, str | None]
    ) -> str:
        """Why the program cannot be forked."""
        given, threads = dict(os.environ), set(threading.enumerate())
        with _noted_reads() as read:
            for name in modules:
                # One that was never meant to be imported by its name.
                with contextlib.suppress(Exception, SystemExit):
                    importlib.import_module(name)
        self._set = {name: value for name, value in os.environ.items() if given.get(name) != value}
        # Libraries set variables as they are imported, which a program reports as well.
        own = {name for name, value in changed.items() if os.environ.get(name) != value}
        if shared := read & {*variables, *own}:
            names = ", ".join(sorted(shared))
            return f"a library reads {names} when it is imported, which the trajectory or program sets"
        has_started = set(threading.enumerate()) - threads
        return "a library starts a thread when it is imported" if has_started else ""

    def serve(self, connection: socket.socket, memory_bytes: int) -> None:
        """The program, in a forked process, which it ends. Answers {"cold": why it is not run, or ""}."""
        told, _ = frames.receive(functools.partial(frames.read_exactly, connection))
        if self._cold:
            connection.sendall(frames.pack({"cold": self._cold}))
            return
        output = os.open(told["output"], os.O_WRONLY)
        for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(source, target)
        faulthandler.disable()
        gc.enable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.environ.clear()
        os.environ.update(self._set | told["variables"])
        os.chdir(told["work"])
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        confined.confine([])
        # What a fork would share, and new interpreters have of their own.
        tempfile.tempdir = None
        time.tzset()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        if told["report"]:
            atexit.register(_report, told["report"], dict(os.environ))
        connection.sendall(frames.pack({"cold": ""}))
        # It has what libraries opened as they were imported, and not what leads to the template or the run.
        for descriptor in _descriptors() - self._kept:
            os.close(descriptor)
        connection.detach()
        if self._arguments[0] != "-m":
            warm.run_script(self._arguments[0], self._arguments, sys.path)
        _, name, *arguments = self._arguments
        # That of `python -m`.
        run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
        warm.run_main(lambda _: run(name), [name, *arguments], [os.getcwd(), *sys.path])


@contextlib.contextmanager
def _noted_reads() -> Iterator[set[str]]:
    """The names of variables that are read meanwhile."""
    read = set[str]()

    class Noted(os._Environ[str]):
        def __getitem__(self, key: str) -> str:
            read.add(key)
            return super().__getitem__(key)

    os.environ.__class__ = Noted
    try:
        yield read
    finally:
        os.environ.__class__ = os._Environ


def _report(path: str, given: Mapping[str, str]) -> None:
    """Writes the modules of libraries, in the order of their imports, and the variables that have changed."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries = tuple(f"{folder}{os.sep}" for folder in [*folders, *site.getsitepackages()])

    def is_library(name: str) -> bool:
        spec = getattr(sys.modules[name], "__spec__", None)
        origin = getattr(spec, "origin", None) or ""
        own = name.partition(".")[0] in _OURS
        return spec is not None and spec.name == name and (own or origin.startswith(libraries))

    changed = {
        name: os.environ.get(name)
        for name in {*given, *os.environ}
        if given.get(name) != os.environ.get(name)
    }
    modules = [name for name in sys.modules if name != "__main__" and is_library(name)]
    Path(path).write_text(json.dumps({"modules": modules, "changed": changed}))


def _shadowed(script: str) -> str:
    """Words about a file beside the script that stands in front of a module which is imported already."""
    if script == "-m":
        return ""
    for name in sorted({name.partition(".")[0] for name in sys.modules} - {"__main__"}):
        spec = importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(script)])
        if spec is not None and spec.origin not in (None, getattr(sys.modules[name], "__file__", None)):
            return f"{spec.origin} stands in front of Python's or a library's {name}"
    return ""


def _descriptors() -> set[int]:
    listed = os.listdir("/proc/self/fd")
    # Without that of the listing.
    return {int(name) for name in listed if os.path.lexists(f"/proc/self/fd/{name}")}


def main() -> None:
    host = WarmHost()
    fork_server.run(host.prepare, host.serve)


if __name__ == "__main__":
    main()
