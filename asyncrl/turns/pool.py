"""EpisodePool: environments and tools in killable processes, one per trajectory.

Each is a fork of a warm template, which has loaded the environment and the tools: milliseconds. They see no
variable of the run's environment but a few, and no file that the pool hides. A trajectory without
environment and tools has no process.

Used from one event loop. Nothing heavy is imported here."""

import asyncio
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from asyncrl.loops import RunPart
from asyncrl.records import EnvironmentSpec
from asyncrl.turns.episode import EnvironmentFault, Episode
from asyncrl.turns.host import BUILD, Cast, Preparation
from asyncrl.turns.hosted_episode import EpisodeProcess, HostedEpisode, Late, NoEpisode, death
from asyncrl.turns.registry import check_options
from verifiers.template import Template, WorkerDied

START_SECONDS = 60.0
"""To build an environment and to start it: no response is to blame for that time."""
MOUNTING = frozenset(["python", "container"])
"""Tools and environments whose sandbox mounts, which Landlock forbids: from the process of one nothing is
hidden. Its programs see no file of the machine anyway."""
KEPT_VARIABLES = frozenset(
    "PATH HOME USER LOGNAME SHELL VIRTUAL_ENV CUDA_VISIBLE_DEVICES XDG_CACHE_HOME PYTHONHASHSEED "
    "COVERAGE_PROCESS_START".split()
)
"""Environment variables that reach environments and tools, besides those of any program of the user's
(`kept_variables`). What else they need is an option, or in a file."""
_KEPT_OF_ANY = frozenset("LANG LANGUAGE TZ LD_LIBRARY_PATH SSL_CERT_FILE SSL_CERT_DIR".split())


class EpisodePool(RunPart):
    def __init__(
        self,
        *,
        tools: Sequence[str | Mapping[str, Mapping[str, Any]]] = (),
        folder: Path | None = None,
        max_processes: int = 64,
        timeout_seconds: float = 10.0,
        memory_bytes: int = 1 << 30,
        start_seconds: float = START_SECONDS,
        prints: Path | None = None,
        hidden: Sequence[Path] = (),
    ) -> None:
        """`tools`, by name or {name: options}, for every trajectory. `folder`: paths in names are relative to
        it. `timeout_seconds` and `memory_bytes` are those of one turn, and of one process. What environments
        print goes to the file `prints`, else to standard error. `hidden`: files and folders that they cannot
        open, where the kernel has Landlock and no tool is of MOUNTING_TOOLS; see `sandbox.landlock.hide`."""
        if max_processes < 1:
            raise ValueError(f"max_processes is {max_processes}, expected at least 1.")
        if timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0.")
        self.timeout_seconds = timeout_seconds
        self.start_seconds = max(start_seconds, timeout_seconds)
        self.num_killed = 0
        """Processes ended because of a limit, since the start."""
        self._memory_bytes = memory_bytes
        self._tools = list(tools)
        self._folder = None if folder is None else str(folder.resolve())
        names = {name for tool in tools for name in ([tool] if isinstance(tool, str) else tool)}
        mounts = not names.isdisjoint(MOUNTING)
        self._hidden = () if mounts else tuple(str(path.resolve()) for path in hidden)
        self._prints = prints
        self._places = asyncio.Semaphore(max_processes)
        self._starting = asyncio.Lock()
        self._templates: dict[bool, Template[EpisodeProcess]] = {}
        """By whether nothing is hidden from what it forks."""
        self._temporary: str | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kills all processes. Requests in flight end as faults."""
        self._is_closed = True
        async with self._starting:
            for template in self._templates.values():
                await template.close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    async def open(self, environment: EnvironmentSpec | None) -> Episode:
        """Waits for a place. Raises EnvironmentFault where the environment or a tool cannot be loaded."""
        if environment is None and not self._tools:
            return NoEpisode()
        cast = self._cast(environment)
        await self._places.acquire()
        try:
            process, built = await self.fork(cast)
        except BaseException:
            self._places.release()
            raise
        return HostedEpisode(self, cast, process, built)

    async def fork(self, cast: Cast) -> tuple[EpisodeProcess, dict[str, Any]]:
        """A process that has built what it hosts, and what it said of it. Raises EnvironmentFault."""
        try:
            template = await self._warm(sees_all=not self._hidden or cast.environment in MOUNTING)
            # Options are of a trajectory: the template loads what all of them share.
            what = Preparation(Cast(cast.environment, {}, cast.tools, cast.folder))
            await template.prepare(pickle.dumps(what))
            process = await template.fork()
            process.template = template
        except (WorkerDied, RuntimeError) as error:
            raise EnvironmentFault(f"its process does not start: {error}") from error
        try:
            request = process.ask(BUILD, pickle.dumps(cast), seconds=self.start_seconds)
            built = await self.watched(process, request, is_of_response=False)
        except BaseException:
            template.end_soon(process)
            raise
        process.note_memory()
        return process, built

    async def watched(self, process: EpisodeProcess, request: Any, *, is_of_response: bool) -> Any:
        """Awaits a request; the process is ended where it raises Late. Raises EnvironmentFault, TurnLimit and
        Late."""
        try:
            return await request
        except Late:
            self.num_killed += 1
            await self.end(process)
            if is_of_response:
                raise
            raise EnvironmentFault(f"it took more than {self.start_seconds:g} s to start") from None
        except (OSError, asyncio.IncompleteReadError):
            ended = await process.template.end(process)
            raise death(ended, process, self._memory_bytes, is_of_response=is_of_response) from None

    async def end(self, process: EpisodeProcess) -> None:
        await process.template.end(process)

    def give_back(self) -> None:
        """A trajectory that had a place needs it no longer."""
        self._places.release()

    def _cast(self, environment: EnvironmentSpec | None) -> Cast:
        """Raises EnvironmentFault where a built-in environment does not take the options."""
        if environment is None:
            return Cast(None, {}, self._tools, self._folder)
        try:
            options = check_options(environment.name, environment.options)
        except ValueError as error:
            raise EnvironmentFault(str(error)) from error
        return Cast(environment.name, options, self._tools, self._folder)

    async def _warm(self, *, sees_all: bool) -> Template[EpisodeProcess]:
        async with self._starting:
            if self._is_closed:
                raise WorkerDied("the pool is closed")
            if sees_all not in self._templates:
                self._temporary = self._temporary or tempfile.mkdtemp(prefix="asyncrl-turns-")
                template = Template(
                    "asyncrl.turns.host",
                    EpisodeProcess,
                    memory_limit_bytes=self._memory_bytes,
                    prints=self._prints,
                    environment=clean_environment(os.environ, self._temporary),
                )
                await template.start()
                self._templates[sees_all] = template
                if not sees_all:
                    # Before any code of the user's runs; a template that replaces this one begins with it.
                    await template.prepare(pickle.dumps(Preparation(hidden=self._hidden)))
            return self._templates[sees_all]


def kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that any program of the user's may need: locale, time zone, libraries and certificates."""
    return {key: value for key, value in variables.items() if key in _KEPT_OF_ANY or key.startswith("LC_")}


def clean_environment(variables: Mapping[str, str], temporary: str) -> dict[str, str]:
    """The variables of environments and tools, whose temporary files are in the folder `temporary`."""
    own = {key: value for key, value in variables.items() if key in KEPT_VARIABLES}
    # Threads of a library would be lost in a fork, and reserve memory that its limit counts.
    return {
        **kept_variables(variables),
        **own,
        "TMPDIR": temporary,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
