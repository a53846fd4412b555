"""The trainer ranks of a run: started, watched and, from the last checkpoint, restarted together."""

import asyncio
import logging
import re
import signal
from pathlib import Path

from asyncrl.errors import AsyncrlError, DiskError, Diverged, RankLost
from asyncrl.journal.starts import record_change
from asyncrl.journal.writer import Journal
from asyncrl.launch.placement import rank_name
from asyncrl.launch.servers import LocalServers
from asyncrl.launch.site.site import Process, Site, forwarded, trainer_needs
from asyncrl.loops import end_tasks
from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Recipe
from asyncrl.serving.engine.environment import group_environment
from asyncrl.wire.access import TOKEN_VARIABLE
from asyncrl.wire.messages import find_ending

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Restarts in a row without a new step; of a trainer that ended with an error, without a new checkpoint."""
STOP_SECONDS = 0.0
"""A rank has nothing to do before it ends, and ignores SIGTERM."""
BAD_INPUT = 2
"""Exit code of a trainer that refuses its recipe."""
CERTAIN = (BAD_INPUT, DiskError.EXIT_CODE, Diverged.EXIT_CODE)
"""Exit codes that another start would end with too."""
TOLD = (DiskError.EXIT_CODE, Diverged.EXIT_CODE)
"""Exit codes of a trainer that tells why in a record (`wire.messages.find_ending`)."""


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

    def __init__(self, recipe: Recipe, *, run_folder: Path, logs: Path, site: Site, token: str = "") -> None:
        """`token` is the run's, which the queue asks for."""
        self._recipe = recipe
        self._site = site
        self._token = token
        self._run_folder = run_folder
        self._logs = logs
        self._queue_url = ""
        self.ranks: list[Process] = []

    async def start(self, queue_url: str) -> None:
        """All ranks; they take their batches at `queue_url`. Raises InputError where no node has room."""
        self._queue_url = queue_url
        places = await self._site.place(trainer_needs(self._recipe))
        first = places[rank_name(0)]
        arguments = ["-m", "asyncrl.trainer.main"]
        arguments += ["--run-folder", str(self._run_folder), "--queue-url", queue_url]
        self.ranks = [
            self._site.process(
                rank_name(rank),
                arguments,
                environment={
                    **rank_environment(self._recipe.trainer, rank, port=first.port, host=first.host),
                    **(group_environment() if self._recipe.serving.weight_transport == "distributed" else {}),
                    **({"LOCAL_RANK": "0"} if places[rank_name(rank)].is_alone else {}),
                    **forwarded([self._recipe.serving.api_key_variable]),
                    TOKEN_VARIABLE: self._token,
                },
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
                    if task.result() != 0:
                        rank = await self._first_to_die(running[task])
                        code = rank.returncode()
                        assert code is not None
                        raise TrainerFailed(_last_words(rank, code), exit_code=code)
                    running.pop(task)
        finally:
            await end_tasks(*running)

    async def _first_to_die(self, found: Process) -> Process:
        """The rank that is the cause: one whose node is lost, or that was killed. The other ranks then end
        with an error, at once, while the loss of a node may be known some seconds later."""
        others = [asyncio.create_task(rank.wait()) for rank in self.ranks if rank.is_running()]
        if others and (found.returncode() or 0) > 0 and found.loss_seconds:
            await asyncio.wait(others, timeout=found.loss_seconds)
        await end_tasks(*others)
        # Those that ended only because another one did say nothing of why.
        first = [rank for rank in self.ranks if rank.returncode() and not _lost_another(rank)]
        killed = (rank for rank in first if (rank.returncode() or 0) < 0)
        # One that says why ends the others' waits for it, too.
        certain = (rank for rank in first if rank.returncode() in CERTAIN)
        cause = next(killed, next(certain, next(iter(first), found)))
        return next((rank for rank in self.ranks if rank.why_lost), cause)

    def kill(self, why: str) -> None:
        """Ends ranks that hang, at once; `wait` then raises."""
        log.error("the trainer is killed: %s", why)
        for rank in self.ranks:
            rank.kill()

    async def stop(self) -> None:
        await asyncio.gather(*(rank.stop(grace_seconds=STOP_SECONDS) for rank in self.ranks))


def _lost_another(rank: Process) -> bool:
    """Whether another rank's end ended it."""
    code = rank.returncode() or 0
    return code == RankLost.EXIT_CODE or nccl_ending(code, rank.last_lines(NUM_LINES)) is not None


def _last_words(rank: Process, exit_code: int) -> str:
    lines = rank.last_lines()
    if exit_code in TOLD and (ending := find_ending(lines)) is not None:
        return f"{rank.name} stopped. {ending.error}: {ending.message}"
    if exit_code == DiskError.EXIT_CODE:
        # What it said may have found no room in its log.
        return (
            f"{rank.name} stopped: the disk under {rank.log_path.parent.parent} refuses what it writes. Free "
            f"up disk space and run the same command again: it resumes."
        )
    how = f"ended with exit code {exit_code}"
    if rank.why_lost:
        how = f"is lost: {rank.why_lost}"
    elif clause := nccl_ending(exit_code, rank.last_lines(NUM_LINES)):
        how = clause
    elif exit_code == -signal.SIGKILL:
        how = (
            "was killed (SIGKILL), as the kernel does with the largest process when memory runs out; "
            "`asyncrl plan` says what needs how much"
        )
    return f"{rank.name} {how}. Its last lines ({rank.log_path}):\n{lines}"


NUM_LINES = 400
"""Lines of the log to look at: the stack and the dump of each thread come after the line that says why."""
_TIMED_OUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(.*?OpType=(?P<kind>\w+).*? "
    r"ran for (?P<ms>\d+) milliseconds"
)
_GONE = re.compile(r"ncclRemoteError|remote process exited or there was a network error")
_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) ?s(?:econds)? without making progress")


def nccl_ending(exit_code: int, lines: str) -> str | None:
    """A clause about a rank of this exit code that NCCL ended because of another one; None of any other.

    On GPUs no rank waits for another one in Python: a thread of torch sees that a collective takes too long,
    or that its peer is gone, and ends the process (SIGABRT) below a long stack of C++.
    """
    if exit_code != -signal.SIGABRT:
        return None
    if found := _TIMED_OUT.search(lines):
        return (
            f"lost another rank: its {found['kind']} had no end after {int(found['ms']) / 1000:.0f} s "
            f"(trainer.rank_timeout_seconds), so another rank died or hangs, or took another path; its own "
            f"log says more. NCCL's watchdog ended this one (SIGABRT)"
        )
    if _GONE.search(lines):
        return (
            "lost another rank: its connection broke, so that rank or its machine is gone; its own log says "
            "more. NCCL's watchdog ended this one (SIGABRT)"
        )
    if found := _STUCK.search(lines):
        return (
            f"hung: its GPU made no progress for {found['seconds']} s, and NCCL's watchdog ended it (SIGABRT)"
        )
    return None


class LocalSupervisor:
    """Hands each request to the servers, the trainer or the journal."""

    def __init__(
        self, recipe: Recipe, servers: LocalServers, trainers: TrainerRanks, journal: Journal
    ) -> None:
        self._recipe = recipe
        self._servers = servers
        self._trainers = trainers
        self._journal = journal

    async def restart_server(self, url: str) -> str:
        return await self._servers.restart(url)

    async def end_server(self, url: str) -> None:
        await self._servers.end(url)

    def kill_trainer(self, why: str) -> None:
        self._trainers.kill(why)

    def record_server_change(self, action: str, url: str) -> None:
        record_change(
            self._journal, action, url, is_local=url in self._servers.processes, serving=self._recipe.serving
        )
