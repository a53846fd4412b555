"""One child process of a run: started with a log file, ended for certain, its last lines at hand.

Children sit in sessions of their own, so Ctrl-C in the terminal reaches the launcher alone, and the kernel
kills them when the launcher dies, however it dies. Knows nothing of what the process does.
"""

import asyncio
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from asyncrl.system.paths import search_path
from sandbox.kernel import die_with_parent


class ChildProcess:
    """Start it once; `wait` and `stop` may be called from several tasks."""

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
