"""The trackers of a run: a child process each, which the run starts, does not wait for, and ends in time.

One that ends by itself is dropped with a warning that says why and what it did not get. That is in
metrics.jsonl still: the next start of the run sends it.
"""

import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from asyncrl.launch.site.site import ChildProcess
from asyncrl.loops import end_tasks
from asyncrl.readers.trackers.process import FAILED, STALL_SECONDS
from asyncrl.readers.trackers.tracker import position_path, read_position, rows_left
from asyncrl.recipe import Tracker as Settings
from asyncrl.recipe.file import shown
from asyncrl.system.places import METRICS

log = logging.getLogger(__name__)

FLUSH_SECONDS = 10.0
"""At the end of a run, for all at once: enough for a slow network, and short compared with any run."""
HURRIED_SECONDS = 2.0
"""After a request to stop: a part of `asyncrl.launch.stopping.PROCESSES_SECONDS`."""
STALLED = 1
"""Exit code with which `faulthandler` ends a process."""


class TrackerProcesses:
    """Processes of the trackers in one start of a run. Nothing here waits for a tracker but `stop`."""

    def __init__(
        self,
        trackers: Sequence[Settings],
        run_folder: Path,
        logs: Path,
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._run_folder = run_folder
        self._metrics = run_folder / METRICS
        self._stall_seconds = stall_seconds
        self._processes = {
            settings.label(): ChildProcess(
                f"tracker {settings.label()}",
                [
                    *("-m", "asyncrl.readers.trackers.process", settings.label(), str(run_folder)),
                    *("--stall-seconds", str(stall_seconds)),
                ],
                environment={},
                log_path=logs / f"tracker-{settings.label()}.log",
            )
            for settings in trackers
        }
        self._watchers: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._flush_seconds = HURRIED_SECONDS

    async def start(self) -> None:
        for label, process in self._processes.items():
            try:
                await process.start()
            except OSError as error:
                log.warning("tracker %s does not start: %s. The run continues without it.", label, error)
                continue
            watcher = asyncio.create_task(self._watch(label, process), name=process.name)
            self._watchers.append(watcher)

    def allow(self, seconds: float) -> None:
        """Gives `stop` that time, in place of HURRIED_SECONDS: the run has reached its end."""
        self._flush_seconds = seconds

    async def stop(self) -> None:
        """Lets them send what is left for the time that is allowed, then kills them."""
        self._is_stopping = True
        await asyncio.gather(*(self._end(label, process) for label, process in self._processes.items()))
        await end_tasks(*self._watchers)

    async def _watch(self, label: str, process: ChildProcess) -> None:
        code = await process.wait()
        if not self._is_stopping:
            log.warning(
                "tracker %s is dropped: %s. %s", label, self._cause(process, code), self._lost(label, process)
            )

    async def _end(self, label: str, process: ChildProcess) -> None:
        if not process.is_running():
            return
        await process.stop(grace_seconds=self._flush_seconds)
        code = process.returncode()
        if code == -signal.SIGKILL:
            why = f"it did not end within {self._flush_seconds:g} s"
        elif code == -signal.SIGTERM:
            why = "the run was over before it had begun"
        elif code:
            why = self._cause(process, code)
        else:
            return
        log.warning("tracker %s is cut off: %s. %s", label, why, self._lost(label, process))

    def _cause(self, process: ChildProcess, code: int) -> str:
        last = process.last_lines(1)[:300]
        match code:
            case _ if code == FAILED:
                return last
            case _ if code == STALLED and "Timeout (" in process.last_lines(200):
                return f"it did not come back within {self._stall_seconds:g} s"
            case _ if code < 0:
                return f"it was killed by signal {-code}"
            case _:
                return f"it ended with code {code} ({last})"

    def _lost(self, label: str, process: ChildProcess) -> str:
        position = read_position(position_path(self._run_folder, label))
        rows, where = rows_left(self._metrics, position), shown(self._run_folder)
        return (
            f"It lacks {rows} row(s) of metrics.jsonl and all later ones; `asyncrl track {where}`, or the "
            f"next start of the run, sends them. Its log: {shown(process.log_path)}"
        )
