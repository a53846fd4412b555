"""The trainer ranks of a run: started, watched and, from the last checkpoint, restarted together."""

import asyncio
import logging
import signal
from pathlib import Path

from asyncrl.errors import AsyncrlError, DiskError, Diverged
from asyncrl.launch.process import ChildProcess
from asyncrl.model.layout import rank_environment
from asyncrl.ports import free_ports
from asyncrl.recipe import Recipe

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Of the trainer in a row without a new step; of one that ended with an error, without a new checkpoint."""
STOP_SECONDS = 1.0
BAD_INPUT = 2
"""Exit code of a trainer that refuses its recipe."""
CERTAIN = (BAD_INPUT, DiskError.EXIT_CODE, Diverged.EXIT_CODE)
"""Exit codes that another start would end with too."""


class TrainerFailed(AsyncrlError):
    """The trainer ended with an error that a restart did not cure; the message holds its last lines."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.was_killed = exit_code < 0
        """By a signal: says nothing against the recipe."""
        self.is_certain = exit_code in CERTAIN
        """No restart helps."""


class TrainerRanks:
    """`num_processes` processes under torchrun's environment variables."""

    def __init__(self, recipe: Recipe, *, run_folder: Path, logs: Path) -> None:
        self._recipe = recipe
        self._run_folder = run_folder
        self._logs = logs
        self._queue_url = ""
        self.ranks: list[ChildProcess] = []

    async def start(self, queue_url: str) -> None:
        """All ranks; they take their batches at `queue_url`."""
        self._queue_url = queue_url
        port = free_ports(1)[0]
        arguments = ["-m", "asyncrl.trainer.main"]
        arguments += ["--run-folder", str(self._run_folder), "--queue-url", queue_url]
        self.ranks = [
            ChildProcess(
                f"trainer {rank}",
                arguments,
                environment=rank_environment(self._recipe.trainer, rank, port=port),
                log_path=self._logs / f"trainer-{rank}.log",
            )
            for rank in range(self._recipe.trainer.num_processes)
        ]
        for rank in self.ranks:
            await rank.start()

    async def restart(self) -> None:
        await self.stop()
        await self.start(self._queue_url)

    async def wait(self) -> None:
        """Returns when every rank ended well. Raises TrainerFailed as soon as one did not."""
        running = {asyncio.create_task(rank.wait()): rank for rank in self.ranks}
        try:
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    rank = running.pop(task)
                    if task.result() != 0:
                        raise TrainerFailed(_last_words(rank, task.result()), exit_code=task.result())
        finally:
            for task in running:
                task.cancel()

    def kill(self, why: str) -> None:
        """Ends ranks that hang, at once; `wait` then raises."""
        log.error("the trainer is killed: %s", why)
        for rank in self.ranks:
            rank.kill()

    async def stop(self, *, grace_seconds: float = STOP_SECONDS) -> None:
        await asyncio.gather(*(rank.stop(grace_seconds=grace_seconds) for rank in self.ranks))


def _last_words(rank: ChildProcess, exit_code: int) -> str:
    lines = rank.last_lines()
    if exit_code == DiskError.EXIT_CODE:
        for line in reversed(lines.splitlines()):
            if line.startswith(DiskError.__name__) and line.endswith("resumes."):
                return f"{rank.name} stopped. {line}"
        # What it said may have found no room in its log.
        return (
            f"{rank.name} stopped: the disk under {rank.log_path.parent.parent} refuses what it writes. Make "
            f"room on the disk and run the same command again: it resumes."
        )
    if exit_code == Diverged.EXIT_CODE:
        for line in reversed(lines.splitlines()):
            if line.startswith(Diverged.__name__):
                return f"{rank.name} stopped. {line}"
    how = f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        how = (
            "was killed (SIGKILL), as the kernel does with the largest process when memory runs out; "
            "`asyncrl plan` says what needs how much"
        )
    return f"{rank.name} {how}. Its last lines ({rank.log_path}):\n{lines}"
