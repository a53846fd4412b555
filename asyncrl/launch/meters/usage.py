"""Counts what a start of a run uses: seconds and CPU time of each process, GPUs held.

A loop reads the kernel's counters every few seconds and hands them to the journal, so that kill -9 loses one
interval at most. It reads only; whatever it cannot read is unknown in the report, and never a reason to stop.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import psutil

from asyncrl.journal.starts import CONTROLLER, OTHERS, RUN, Usage, record_usage
from asyncrl.journal.writer import Journal, JournalError
from asyncrl.launch.meters.memory import MemoryMeter
from asyncrl.launch.site.site import Process
from asyncrl.loops import background

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
DISCOVERY_SECONDS = 10.0
"""Pause between two searches for new descendants."""


class UsageMeter:
    """Usage since it was made: of this process, `processes()` by name, and all others below this one."""

    def __init__(
        self,
        processes: Callable[[], Iterable[Process]],
        *,
        gpus: Mapping[str, int],
        num_gpus: int,
        memory: MemoryMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gpus` has the number of GPUs of each process that has any; the run has `num_gpus`, fewer than
        their sum where processes share them. `memory` measures what is discovered."""
        self._processes = processes
        self._gpus = gpus
        self._num_gpus = num_gpus
        self._memory = memory or MemoryMeter()
        self._clock = clock
        self._began = self._last = clock()
        self._own = psutil.Process()
        self._reaped = _reaped_seconds(self._own)
        self._own_before = _own_seconds(self._own)
        self._families: dict[int, list[psutil.Process]] = {}
        """Child of this process -> it and its descendants, as last discovered."""
        self._named: dict[str, _Named] = {}
        self._others = 0.0

    def discover(self) -> None:
        """Finds the descendants of this process. Reads every process of the machine: not for every sample."""
        families = find_families()
        self._families = {child.pid: family for child, family in families.items()}
        self._memory.measure(families)

    def sample(self) -> list[Usage]:
        """Usage so far."""
        now = self._clock()
        passed, self._last = now - self._last, now
        live = {pid: _family_seconds(family) for pid, family in self._families.items()}
        for process in self._processes():
            named = self._named.setdefault(process.name, _Named())
            named.see(process.local_pid(), live, passed if process.is_running() else 0.0)
        reaped = _reaped_seconds(self._own) - self._reaped
        known = sum(named.cpu_seconds() or 0.0 for named in self._named.values())
        # What no process with a name used. One that has just ended is counted up to its last sample.
        self._others = max(self._others, reaped + sum(live.values()) - known)
        whole = now - self._began
        own = _own_seconds(self._own) - self._own_before
        return [
            Usage(RUN, whole, num_gpus=self._num_gpus),
            Usage(CONTROLLER, whole, own),
            Usage(OTHERS, whole, self._others),
            *(named.usage(name, self._gpus.get(name, 0)) for name, named in self._named.items()),
        ]


class _Named:
    """A process by its name, over all its restarts."""

    def __init__(self) -> None:
        self.wall_seconds = 0.0
        self._pid: int | None = None
        self._ended_seconds = 0.0
        self._seconds = 0.0
        """CPU seconds of the process that has `_pid`."""
        self._num_started = 0

    def see(self, pid: int | None, live: Mapping[int, float], passed_seconds: float) -> None:
        self.wall_seconds += passed_seconds
        if pid is not None and pid != self._pid:
            self._ended_seconds += self._seconds
            self._pid, self._seconds = pid, 0.0
            self._num_started += 1
        if pid is not None:
            self._seconds = max(self._seconds, live.get(pid, 0.0))

    def cpu_seconds(self) -> float | None:
        """None of one that never ran on this machine."""
        return self._ended_seconds + self._seconds if self._num_started else None

    def usage(self, name: str, num_gpus: int) -> Usage:
        restarts = max(0, self._num_started - 1)
        return Usage(name, self.wall_seconds, self.cpu_seconds(), num_gpus, restarts)


@contextlib.asynccontextmanager
async def metering(meter: UsageMeter, journal: Journal, started_seconds: float) -> AsyncIterator[None]:
    """Records what `meter` reads, every INTERVAL_SECONDS and at the end."""
    try:
        async with background(_record(meter, journal, started_seconds), "usage"):
            yield
    finally:
        # A journal that failed has ended the run already.
        with contextlib.suppress(JournalError):
            record_usage(journal, started_seconds, meter.sample())


async def _record(meter: UsageMeter, journal: Journal, started_seconds: float) -> None:
    discovered = -DISCOVERY_SECONDS
    while True:
        try:
            if time.monotonic() - discovered >= DISCOVERY_SECONDS:
                await asyncio.to_thread(meter.discover)
                discovered = time.monotonic()
            record_usage(journal, started_seconds, meter.sample())
        except JournalError:
            return
        except (psutil.Error, OSError) as error:
            log.info("what the run uses could not be read: %s", error)
        await asyncio.sleep(INTERVAL_SECONDS)


def _own_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _reaped_seconds(process: psutil.Process) -> float:
    """CPU seconds of its children that have ended, and of theirs."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _family_seconds(family: Sequence[psutil.Process]) -> float:
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.Error):
            total += _own_seconds(process) + _reaped_seconds(process)
    return total


def find_families() -> dict[psutil.Process, list[psutil.Process]]:
    """Child of this process -> it and its descendants that live.

    Reads every process of the machine once, which takes long where there are many: not for an event loop.
    """
    own = psutil.Process()
    families: dict[psutil.Process, list[psutil.Process]] = {}
    firsts: dict[int, psutil.Process] = {}
    # Parents come before their children.
    for process in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            parent = process.ppid()
            first = process if parent == own.pid else firsts.get(parent)
            # Its parent has ended since it was found: it belongs to none of them any more.
            if first is not None:
                firsts[process.pid] = first
                families.setdefault(first, []).append(process)
    return families
