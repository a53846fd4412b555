"""How much memory the processes of a run on this machine hold, measured now and then.

A process is told by its command line. Those on other machines are not seen. Resident sets count what
processes share in each of them: a growth is one, a level is an upper bound.
"""

import contextlib
from collections.abc import Mapping, Sequence

import psutil

GIB = 2**30
TRAINER = "asyncrl.trainer.main"
SERVER = "sglang.launch_server"


class MemoryMeter:
    def __init__(self) -> None:
        self._row: dict[str, float] = {}
        """The measurement that no row has yet."""
        self._roles: dict[psutil.Process, str] = {}

    def take_row(self) -> dict[str, float]:
        """controller_memory_gib, trainer_memory_gib (the largest rank) and server_memory_gib (the largest
        server with its own processes), of those that there are. Empty where nothing was measured since the
        last call: a size of before a step says nothing of it."""
        row, self._row = self._row, {}
        return row

    def measure(self, families: Mapping[psutil.Process, Sequence[psutil.Process]]) -> None:
        """Measures the row that is taken next; `families` as `find_families` finds them."""
        sizes = {"controller": [psutil.Process().memory_info().rss], "trainer": [], "server": []}
        roles: dict[psutil.Process, str] = {}
        for child, family in families.items():
            # A child that has not begun its program yet has no role: it is looked at again.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if role := self._roles.get(child) or _role(child):
                    roles[child] = role
                    sizes[role].append(_resident_bytes(family))
        self._roles = roles
        self._row = {
            f"{role}_memory_gib": round(max(found) / GIB, 3) for role, found in sizes.items() if found
        }


def _resident_bytes(family: Sequence[psutil.Process]) -> int:
    total = 0
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_info().rss
    return total


def _role(process: psutil.Process) -> str:
    """Role of a child of the controller: trainer or server, else empty."""
    words = process.cmdline()
    if TRAINER in words:
        return "trainer"
    return "server" if SERVER in words else ""
