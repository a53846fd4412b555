"""How much memory the processes of a run on this machine hold, measured now and then.

A process is told by its command line. Those on other machines are not seen. Resident sets count what
processes share in each of them: a growth is one, a level is an upper bound.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import psutil

INTERVAL_SECONDS = 10.0
GIB = 2**30
TRAINER = "asyncrl.trainer.main"
SERVER = "sglang.launch_server"


class MemoryMeter:
    """`row` has the columns of the last measurement, of those processes that there are."""

    def __init__(self) -> None:
        self._row: dict[str, float] = {}
        self._roles: dict[psutil.Process, str] = {}

    def row(self) -> dict[str, float]:
        """controller_memory_gib, trainer_memory_gib (the largest rank) and server_memory_gib (the largest
        server with its own processes)."""
        return dict(self._row)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Measures every INTERVAL_SECONDS, in a thread: on a machine with many processes it takes long."""
        loop = asyncio.create_task(self._run(), name="memory")
        try:
            yield
        finally:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop

    async def _run(self) -> None:
        while True:
            self._row = await asyncio.to_thread(self.measure)
            await asyncio.sleep(INTERVAL_SECONDS)

    def measure(self) -> dict[str, float]:
        """What `row` says from now on. Reads every process of the machine once."""
        own = psutil.Process()
        sizes = {"controller": [own.memory_info().rss], "trainer": [], "server": []}
        parents: dict[int, int] = {}
        families: dict[int, int] = {}
        roles: dict[psutil.Process, str] = {}
        # Parents come before their children.
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                parent = process.ppid()
                first = process.pid if parent == os.getpid() else parents.get(parent, parent)
                parents[process.pid] = first
                if first == process.pid:
                    roles[process] = self._roles.get(process) or _role(process)
                families[first] = families.get(first, 0) + process.memory_info().rss
        # A child that has not begun its program yet is looked at again.
        self._roles = {process: role for process, role in roles.items() if role}
        for process, role in self._roles.items():
            sizes[role].append(families[process.pid])
        return {f"{role}_memory_gib": round(max(found) / GIB, 3) for role, found in sizes.items() if found}


def _role(process: psutil.Process) -> str:
    """Of a child of the controller: trainer or server, else nothing."""
    words = process.cmdline()
    if TRAINER in words:
        return "trainer"
    return "server" if SERVER in words else ""
