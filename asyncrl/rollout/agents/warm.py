"""Agents as processes that start warm: forked from one that has imported the libraries of their program."""

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.records import Task
from asyncrl.rollout.agents import warm_host
from asyncrl.rollout.agents.process import TRAJECTORY_VARIABLES, Access, ProcessProgram, ProcessPrograms
from sandbox import frames
from verifiers.template import Template, Worker, WorkerDied

log = logging.getLogger(__name__)


class _Cold(Exception):
    """The program cannot be forked; the message says why."""


@dataclass
class WarmPrograms:
    """Starts a Python program for each task, as `processes` would, without its imports. An async context
    manager, which several may enter: its template lives until the last one leaves."""

    processes: ProcessPrograms
    arguments: Sequence[str]
    """Arguments of the interpreter."""
    cold: str = ""
    """Why each program is started after all."""
    _num_open: int = 0
    _template: Template[Worker] | None = None
    _folder: Path | None = None
    """Folders of the trajectories are in it."""
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _importing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "WarmPrograms":
        self._num_open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            async with self._starting:
                await self._close()

    async def _close(self) -> None:
        importing, self._importing = self._importing, None
        template, self._template = self._template, None
        folder, self._folder = self._folder, None
        if template is not None:
            await template.close()
        if importing is not None:
            await importing
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def start(self, task: Task, access: Access, ended: Callable[[], None]) -> ProcessProgram:
        """Raises OSError."""
        if not self.cold:
            try:
                async with self._starting:
                    template, base = await self._started()
                prepare = self.processes.prepare(task, access)
                return await self.processes.begin(
                    prepare, ended, lambda *parts: self._fork(template, *parts), base=base
                )
            except (_Cold, WorkerDied, RuntimeError) as error:
                self.cold = str(error)
                log.warning(
                    "each start of the agent's program imports its libraries: %s. agent.starts_warm: false "
                    "leaves the attempt out.",
                    error,
                )
        return await self.processes.start(task, access, ended)

    async def _started(self) -> tuple[Template[Worker], Path]:
        """The template and the folder. Raises WorkerDied, RuntimeError."""
        assert self._num_open, "programs start while the endpoint is open"
        if self._template is not None and self._folder is not None:
            return self._template, self._folder
        # Before the template hides what is made later in the folders above hidden files.
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="asyncrl-agents-"))
        folder = self._folder / "template"
        folder.mkdir(exist_ok=True)
        variables = self.processes.own_variables(folder)
        own = {"HOME": warm_host.OWN_FOLDER, "TMPDIR": warm_host.OWN_FOLDER}
        template = Template(
            warm_host.__name__,
            Worker,
            memory_limit_bytes=self.processes.section.memory_mib * 2**20,
            prints=Path(os.devnull),
            environment={"PYTHONPATH": "", **variables, **own},
        )
        await template.start()
        self._template = template
        hidden = [str(path.resolve()) for path in self.processes.hidden]
        told = {"arguments": list(self.arguments), "folder": str(folder), "hidden": hidden}
        await template.prepare(json.dumps(told).encode())
        return template, self._folder

    async def _fork(
        self, template: Template[Worker], folder: Path, variables: dict[str, str]
    ) -> "WarmProcess":
        """Raises _Cold, WorkerDied, OSError."""
        worker = await template.fork()
        output, report = folder / "output", folder / "work" / ".modules.json"
        output.touch()
        told = {
            "variables": variables,
            "work": str(folder / "work"),
            "output": str(output),
            "report": str(report) if self._importing is None else "",
        }
        try:
            answer, _ = await worker.exchange(frames.pack(told))
            if answer["cold"]:
                raise _Cold(answer["cold"])
        except BaseException as error:
            await template.end(worker)
            if isinstance(error, asyncio.IncompleteReadError):
                raise OSError(f"before its program began: {output.read_text().strip()}") from error
            raise
        return WarmProcess(template, worker, lambda code: self._ended(code, template, report))

    async def imported(self) -> None:
        """Returns once the template has imported what a program reported that has ended."""
        assert self._importing is not None
        await self._importing

    def _ended(self, code: int | None, template: Template[Worker], report: Path) -> None:
        """Has the template import what a program reported, once."""
        if code is None and self._num_open:
            self.cold = self.cold or "the process from which programs were forked has died"
        elif code == 0 and self._importing is None and template is self._template and report.is_file():
            assert self._folder is not None, "it is there with the template"
            # The template reads it, which sees no more than the program did. Here a link would be followed.
            kept = report.replace(self._folder / "modules.json")
            self._importing = asyncio.create_task(self._import(template, kept))

    async def _import(self, template: Template[Worker], report: Path) -> None:
        told = {"report": str(report), "variables": TRAJECTORY_VARIABLES}
        try:
            await template.prepare(json.dumps(told).encode())
        except WorkerDied as error:
            if self._num_open:
                log.warning("the agent's program starts without its libraries: %s", error)


class WarmProcess:
    """A forked process, to `ProcessProgram` what asyncio's is."""

    def __init__(
        self, template: Template[Worker], worker: Worker, ended: Callable[[int | None], None]
    ) -> None:
        """Raises OSError where it is gone, and its template with it."""
        self.pid = worker.process
        self.returncode: int | None = None
        self._template = template
        self._worker = worker
        self._ended = ended
        # Its socket would not say when it ends: the program does not have that.
        self._descriptor = os.pidfd_open(self.pid)

    async def wait(self) -> int | None:
        """Its exit code; None where its template is gone, and it with that."""
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._descriptor, gone.set)
            await gone.wait()
        finally:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        ended = await self._template.end(self._worker)
        if ended is not None:
            self.returncode = os.waitstatus_to_exitcode(ended.status)
        self._ended(self.returncode)
        return self.returncode


def python_arguments(command: Sequence[str], path: str) -> list[str] | None:
    """Arguments of the interpreter where `command` runs a script or a module by this Python; `path`: PATH."""
    python = shutil.which(command[0], path=path)
    here = Path(sys.executable)
    if python is None or not (Path(python).samefile(here) and Path(python).parent.samefile(here.parent)):
        return None
    match list(command[1:]):
        case ["-m", _, *_] as arguments:
            return arguments
        case [script, *_] as arguments if script.endswith(".py") and Path(script).is_file():
            return arguments if Path(script).is_absolute() else None
    return None
