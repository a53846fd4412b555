"""Agents as processes: the seam, and one per trajectory with a folder, an environment and a time limit."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from asyncrl.recipe import Agent
from asyncrl.records import Task
from asyncrl.rollout.agents import confined
from asyncrl.rollout.agents.task import TASK_VARIABLE, VERDICT_VARIABLE, task_file
from asyncrl.system.paths import search_path
from asyncrl.turns.pool import kept_variables
from sandbox import landlock
from verifiers.verdict import as_number

Given = float | Mapping[str, float]
"""The scores that an agent gave, in [0, 1]: one, or with roles one for each of them."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How an agent's program ended."""

    code: int
    """Its exit code, negative for a signal; 0 is well."""
    detail: str = ""
    """The end of what it printed, or why it did not end well."""
    score: Given | None = None
    """Raw correctness that it gave, where it may."""
    is_lost: bool = False
    """Whether another trajectory may have ended it, whose process it shared: it is started again, once, in a
    process of its own, and no fault is counted."""


def read_verdict(found: Any, roles: Sequence[str], opponents: Sequence[str] = ()) -> Given:
    """Scores of opponents are left out: the same agent plays with and without them. Raises ValueError."""
    if not roles:
        return as_number(found, "the score", 0.0, 1.0)
    if not isinstance(found, Mapping):
        example = json.dumps(dict.fromkeys(roles, 1.0))
        raise ValueError(f"it is {found!r:.80}, expected a score for each role (agent.roles), as {example}")
    found = {name: score for name, score in found.items() if name not in opponents}
    unknown = next((name for name in found if name not in roles), None)
    if unknown is not None:
        raise ValueError(
            f"it has a score for {unknown!r:.80}, expected one of agent.roles: {', '.join(roles)}"
        )
    return {role: as_number(score, f"the score of {role}", 0.0, 1.0) for role, score in found.items()}


@dataclass(frozen=True, slots=True)
class Access:
    """How an agent reaches the model."""

    base_url: str
    """Ends in /v1."""
    api_key: str
    """Good for one trajectory, until that ends."""


class Running(Protocol):
    """A process, as asyncio has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int | None:
        """Its exit code; None where it was lost."""
        ...


class Program(Protocol):
    def exit(self) -> Exit | None:
        """None while it runs."""
        ...

    async def end(self) -> None:
        """Kills it and what it started, and removes its files. May be called again."""
        ...


class Programs(Protocol):
    """Starts agents: processes in a run, coroutines in tests."""

    async def start(self, task: Task, access: Access, ended: Callable[[], None]) -> Program:
        """`ended` is called once the program has exited. Raises OSError where it cannot start."""
        ...


log = logging.getLogger(__name__)

TRAJECTORY_VARIABLES = (
    *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    *(TASK_VARIABLE, VERDICT_VARIABLE),
)
"""Environment variables that differ between the trajectories of a run."""
_TAIL_BYTES = 2000
"""The end of what a program printed, for a fault's detail."""


@dataclass
class ProcessPrograms:
    """Starts a program for each task."""

    command: Sequence[str]
    section: Agent = Agent()
    hidden: Sequence[Path] = ()
    """Files and folders that a program must not read."""

    def __post_init__(self) -> None:
        if self.hidden and landlock.abi() < landlock.LEAST_ABI:
            log.warning(
                "agents can read the run folder and the data: this kernel's Landlock is of version %d, "
                "expected %d or later",
                landlock.abi(),
                landlock.LEAST_ABI,
            )

    def read_verdict(self, found: Any) -> Given:
        """Raises ValueError."""
        return read_verdict(found, self.section.roles, list(self.section.opponents))

    async def start(self, task: Task, access: Access, ended: Callable[[], None]) -> "ProcessProgram":
        """Raises OSError."""
        return await self.launch(self.command, self.prepare(task, access), ended)

    def prepare(self, task: Task, access: Access) -> "Prepare":
        """Fills the folder of a trajectory; gives the variables of its program."""

        def prepare(folder: Path) -> dict[str, str]:
            (folder / "task.json").write_text(task_file(task, self.section.columns))
            return self._variables(folder, access)

        return prepare

    async def launch(
        self,
        command: Sequence[str],
        prepare: "Prepare",
        ended: Callable[[], None],
        *,
        pass_fds: Sequence[int] = (),
    ) -> "ProcessProgram":
        """A process of `command` with the limits of agents; `prepare` fills its folder and gives its
        variables. Raises OSError."""

        async def run(folder: Path, variables: dict[str, str]) -> Running:
            limits = confined.settings(
                parent=os.getpid(),
                memory_bytes=self.section.memory_mib * 2**20,
                hidden=[str(path) for path in self.hidden],
            )
            with (folder / "output").open("wb") as output:
                return await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", confined.__name__, limits, *command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=folder / "work",
                    env=variables,
                    start_new_session=True,
                    pass_fds=pass_fds,
                )

        return await self.begin(prepare, ended, run)

    async def begin(
        self,
        prepare: "Prepare",
        ended: Callable[[], None],
        run: Callable[[Path, dict[str, str]], Awaitable[Running]],
        *,
        base: Path | None = None,
    ) -> "ProcessProgram":
        """The program that `run` starts in a folder, which is made in `base`, with its variables."""
        folder = Path(tempfile.mkdtemp(prefix="asyncrl-agent-", dir=base))
        try:
            (folder / "work").mkdir()
            process = await run(folder, prepare(folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        score_of = self.read_verdict if self.section.may_give_verdict else None
        return ProcessProgram(process, folder, ended, self.explained, score_of)

    def explained(self, detail: str) -> str:
        """`detail` of a bad end and, where a file was denied, what denies files here."""
        if not self.hidden or "permission denied" not in detail.casefold():
            return detail
        folders = ", ".join(sorted({str(path.resolve().parent) for path in self.hidden}))
        return (
            f"{detail}\nasyncrl's isolation (Landlock) denies agents the run folder, its data, and new files "
            f"in the folders above them ({folders}). Write to the working folder, which is HOME and TMPDIR "
            f"too; it is removed when the program ends."
        )

    def _variables(self, folder: Path, access: Access) -> dict[str, str]:
        # Anthropic's clients add the version themselves.
        roots = {"OPENAI": access.base_url, "ANTHROPIC": access.base_url.removesuffix("/v1")}
        api = {f"{name}_BASE_URL": url for name, url in roots.items()}
        api |= {f"{name}_API_KEY": access.api_key for name in roots}
        task = {TASK_VARIABLE: str(folder / "task.json")}
        verdict = {VERDICT_VARIABLE: f"{folder}/work/verdict.json"} if self.section.may_give_verdict else {}
        return self.own_variables(folder) | api | task | verdict

    def own_variables(self, folder: Path) -> dict[str, str]:
        """Those of each process of an agent, whatever trajectories it makes."""
        work = str(folder / "work")
        path = search_path()
        given = {"PATH": path, "HOME": work, "TMPDIR": work, "PYTHONDONTWRITEBYTECODE": "1"}
        proxies = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return kept_variables(os.environ) | given | self.section.environment | proxies


Prepare = Callable[[Path], dict[str, str]]
"""Fills the folder of a program; gives its variables."""


class ProcessProgram:
    def __init__(
        self,
        process: Running,
        folder: Path,
        ended: Callable[[], None],
        explained: Callable[[str], str],
        score_of: Callable[[Any], Given] | None,
    ) -> None:
        """`score_of` reads the score that it may give."""
        self.pid = process.pid
        self._process = process
        self._folder = folder
        self._explained = explained
        self._score_of = score_of
        self._exit: Exit | None = None
        self._waiting = asyncio.create_task(self._wait(ended))

    def exit(self) -> Exit | None:
        return self._exit

    async def end(self) -> None:
        self._kill()
        await self._waiting
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        """All of its session, and children that left that."""
        strays: list[psutil.Process] = []
        if self._process.returncode is None:
            with contextlib.suppress(psutil.Error):
                strays = psutil.Process(self.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for stray in strays:
            with contextlib.suppress(psutil.Error):
                stray.kill()

    async def _wait(self, ended: Callable[[], None]) -> None:
        code = await self._process.wait()
        try:
            self._exit = self._read_exit(code)
        finally:
            ended()

    def _read_exit(self, code: int | None) -> Exit:
        if code is None:
            return Exit(1, "the process that started it is gone", is_lost=True)
        if code != 0:
            return Exit(code, self._explained(self._tail()))
        try:
            return Exit(0, self._tail(), score=self._score())
        except ValueError as error:
            return Exit(1, f"its verdict cannot be read: {error}")

    def _score(self) -> Given | None:
        """Raises ValueError."""
        path = self._folder / "work" / "verdict.json"
        if self._score_of is None or not path.is_file():
            return None
        return self._score_of(json.loads(path.read_text(errors="replace")))

    def _tail(self) -> str:
        with (self._folder / "output").open("rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _TAIL_BYTES))
            return output.read().decode(errors="replace").strip()


def agent_command(command: Sequence[str] | None, function: str | None, folder: Path) -> list[str]:
    """The program and its arguments, files in `folder` with their whole paths."""
    if function is not None:
        return [sys.executable, "-m", "asyncrl.rollout.agents.function", function]
    assert command is not None, "an agent is a command or a function"
    return [str(folder / part) if (folder / part).is_file() else part for part in command]
