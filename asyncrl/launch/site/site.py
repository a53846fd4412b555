"""Where the processes of a run start: on this machine, or on the nodes of a cluster.

A site is asked for places, then for processes in them. `LocalSite` is this machine; `ray_cluster.RayCluster`
is a Ray cluster. What a process does is its caller's matter. Children on this machine sit in sessions of
their own, so Ctrl-C in the terminal reaches the launcher alone, and the kernel kills them when the launcher
dies, however it dies. A node without the controller's disk fetches what its process needs: a server
the base model; a trainer also the recipe with paths of the node, the files of its loss terms and the run's
checkpoints.
"""

import asyncio
import functools
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from asyncrl.launch.placement import GpuMap, rank_name
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import object_files, with_changed_files
from asyncrl.recipe.sections.serving import LOOPBACK, Cluster
from asyncrl.recipe.yaml_text import read_yaml, write_yaml
from asyncrl.system.network import free_ports
from asyncrl.system.paths import search_path
from asyncrl.system.places import CHECKPOINTS, RECIPE, cache_folder
from asyncrl.wire.access import Keys
from asyncrl.wire.fetch import fetch_alone, fetch_file
from asyncrl.wire.file_service import LISTING, MODEL, TERMS, url_of
from sandbox.kernel import die_with_parent


@dataclass(frozen=True, slots=True)
class Need:
    """Needs of one process, for the node that it runs on."""

    name: str
    num_gpus: int
    num_cpus: int
    group: str = ""
    """Processes of one group are placed as close together as possible; without one each stands alone."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process may start."""

    bind_address: str
    """Address that it listens on."""
    host: str
    """Host name or address under which others reach it."""
    port: int
    """Free on its node, for what the process listens on first."""
    has_gpu: bool
    is_alone: bool = False
    """It sees the GPUs that it may use and no others."""


@dataclass(frozen=True, slots=True)
class ControllerDisk:
    """Folders on the controller's disk, and the URL that hands them out."""

    url: str
    model_folder: Path
    run_folder: Path
    keys: Keys


class Process(Protocol):
    """A process of a run; it may be started again after its end."""

    name: str
    log_path: Path
    why_lost: str
    """Empty, or why its end is unknown: its node is gone. It needs another place."""
    loss_seconds: float
    """How long it may take until the loss of its node is known."""

    async def start(self) -> None: ...

    def returncode(self) -> int | None:
        """None while it runs or before it was started."""
        ...

    def is_running(self) -> bool: ...

    async def wait(self) -> int: ...

    def local_pid(self) -> int | None:
        """Pid of a process that runs on this machine, else None."""
        ...

    def kill(self) -> None: ...

    async def stop(self, *, grace_seconds: float) -> None: ...

    def last_lines(self, num_lines: int = 15) -> str: ...


class Site(Protocol):
    address: str
    """Address of this machine, as every node reaches it."""

    async def place(self, needs: Sequence[Need]) -> dict[str, Place]:
        """A place for each need, by name. One that has a place keeps it, with a fresh port, unless its node
        is lost. Raises InputError where no node comes to have what is needed."""
        ...

    def hand_out(self, controller: ControllerDisk) -> None:
        """From now on, nodes that do not see the controller's disk fetch what they need of it."""
        ...

    def process(
        self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> Process:
        """`python <arguments>`, not yet started, in the place of that name."""
        ...


class ChildProcess:
    """A child of this process: start it once; `wait` and `stop` may be called from several tasks."""

    # This machine is not lost: how a child ended is always known.
    why_lost = ""
    loss_seconds = 0.0

    def __init__(
        self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._arguments = list(arguments)
        # SGLang and torch call programs of this environment, such as ninja, even where it is not activated.
        path = search_path()
        # Nothing in the folder where the run was started is imported by accident, such as a random.py;
        # processes that the child starts inherit that.
        self._environment = {**os.environ, "PATH": path, "PYTHONSAFEPATH": "1", **environment}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """`python <arguments>` with this interpreter, output appended to the log file."""
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def returncode(self) -> int | None:
        """None while it runs or before it was started."""
        return self._process.returncode if self._process is not None else None

    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def local_pid(self) -> int | None:
        return self.pid if self.is_running() else None

    async def wait(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL, which also ends a process that is stopped or hangs."""
        if self.is_running():
            assert self._process is not None
            self._process.kill()

    async def stop(self, *, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL after `grace_seconds`, for it and everything it started."""
        if self._process is None:
            return
        # Once it has ended, its number may be another process's.
        family = _family(self.pid) if self.is_running() else []
        if self.is_running():
            self._process.terminate()
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
            except TimeoutError:
                pass
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        await self._process.wait()

    def last_lines(self, num_lines: int = 15) -> str:
        """The end of its log, for an error message."""
        return last_lines(self.log_path, num_lines)


def last_lines(log_path: Path, num_lines: int) -> str:
    try:
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return "(no output)"
    return "\n".join(lines[-num_lines:]) or "(no output)"


def _family(pid: int) -> list[psutil.Process]:
    """The process and its descendants; psutil tells them from later processes of the same number."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class LocalSite:
    """This machine, which has room for everything."""

    def __init__(self, cluster: Cluster, gpus: GpuMap) -> None:
        """`gpus` has those of each process."""
        self.address = LOOPBACK
        self._cluster = cluster
        self._gpus = gpus

    async def place(self, needs: Sequence[Need]) -> dict[str, Place]:
        return self.places(needs)

    def hand_out(self, controller: ControllerDisk) -> None:
        """Every process of this machine sees its disk."""

    def places(self, needs: Sequence[Need]) -> dict[str, Place]:
        bind, host = self._cluster.bind_address, self._cluster.host()
        has_gpu, ports = self._gpus.uses_gpus, free_ports(len(needs))
        return {
            # Trainer ranks, a group, speak among themselves, and here without leaving the machine.
            need.name: Place(LOOPBACK, LOOPBACK, port, has_gpu)
            if need.group
            else Place(bind, host, port, has_gpu)
            for need, port in zip(needs, ports, strict=True)
        }

    def process(
        self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> ChildProcess:
        seen = {**environment, **self._gpus.environment_of(name)}
        return ChildProcess(name, arguments, environment=seen, log_path=log_path)


def trainer_needs(recipe: Recipe) -> list[Need]:
    """One GPU for each rank, all of them as near to each other as they can be."""
    section = recipe.trainer
    return [
        Need(rank_name(rank), 1, section.threads_per_process, group="trainer")
        for rank in range(section.num_processes)
    ]


def server_need(recipe: Recipe, name: str) -> Need:
    """All GPUs of a server on one node."""
    return Need(name, recipe.serving.tensor_parallel_size, recipe.serving.threads_per_server)


def forwarded(names: Sequence[str | None]) -> dict[str, str]:
    """Variables of this process that one on another node needs too."""
    return {name: os.environ[name] for name in names if name is not None and name in os.environ}


def fetch_model(controller: str, *, token: str) -> Path:
    """The base model of the run at `controller`. Raises FetchFailed."""
    url = url_of(controller, MODEL)
    # Named by what is in it: another run may have another model.
    name = hashlib.sha256(fetch_file(f"{url}/{LISTING}", token=token)).hexdigest()[:16]
    return fetch_alone(url, cache_folder("models") / name, token=token)


def fetch_recipe(controller: str, *, token: str) -> dict[str, Any]:
    """The resolved recipe of the run at `controller`, with the controller's paths. Raises FetchFailed."""
    raw: dict[str, Any] = read_yaml(fetch_file(url_of(controller, RECIPE), token=token).decode())
    return raw


def fetch_run(controller: str, name: str, *, token: str) -> Path:
    """A run folder on this node, called `name`, in which a trainer continues the run at `controller`.

    Its checkpoints become those of the controller, which hold all that was committed. Raises FetchFailed.
    """
    folder = node_run_folder(name)
    raw = fetch_recipe(controller, token=token)
    raw["model"] |= {"path": str(fetch_model(controller, token=token)), "revision": None}
    raw["run_folder"] = str(folder)
    terms: dict[str, Path] = {}
    for number, file in enumerate(object_files(raw["algorithm"])):
        terms[file] = folder / "terms" / str(number) / Path(file).name
        terms[file].parent.mkdir(parents=True, exist_ok=True)
        terms[file].write_bytes(fetch_file(url_of(controller, f"{TERMS}/{number}"), token=token))
    raw["algorithm"] = with_changed_files(raw["algorithm"], lambda file: str(terms[file]))
    fetch_alone(url_of(controller, CHECKPOINTS), folder / CHECKPOINTS, token=token)
    (folder / RECIPE).write_text(write_yaml(raw), encoding="utf-8")
    return folder


def node_run_folder(name: str) -> Path:
    """Where `fetch_run` puts a run."""
    return cache_folder("runs") / name
