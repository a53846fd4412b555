"""Memory that the processes of this machine may use: all of it, or what a control group leaves.

A process is killed at the limit of a control group however much the machine has free.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from sandbox.own_groups import MOUNTED, OWN, Group, groups_around


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """In bytes."""

    total: int
    available: int
    """Includes what the kernel would take from caches of files."""
    is_bounded: bool
    """Whether a control group leaves less of it than the machine."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the files of a control group."""

    limit: str
    used: str
    cached: str
    """Field of memory.stat: pages of files that were not read lately."""


_NAMES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


def machine_memory(own: Path = OWN, mounted: Path = MOUNTED) -> MachineMemory:
    """Memory of this process. A control group without a limit, or one that cannot be read, bounds nothing."""
    machine = psutil.virtual_memory()
    bounds = list(_bounds(own, mounted))
    total = min([machine.total, *(limit for limit, _ in bounds)])
    left = min([machine.available, *(max(0, limit - used) for limit, used in bounds)])
    return MachineMemory(total, left, is_bounded=left < machine.available)


def _bounds(own: Path, mounted: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each group around this process that has a limit."""
    for group in groups_around("memory", own, mounted):
        names = _NAMES[group.version]
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((group.folder / name).read_text()) for name in (names.limit, names.used))
            yield limit, used - _cached_bytes(group, names)


def _cached_bytes(group: Group, names: _Names) -> int:
    fields = dict(line.split(" ", 1) for line in (group.folder / "memory.stat").read_text().splitlines())
    return int(fields.get(names.cached, 0))
