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
class GroupMemory:
    """The use of the control group whose limit is nearest."""

    limit: int
    """In bytes."""
    used_share: float
    """Part of the limit in use, without caches of files that were not read lately."""
    stalled_seconds: float | None
    """Time in which some process of the group waited for memory, since the group was made: "some" of
    memory.pressure. None where the kernel does not count it, as under control groups of version 1."""


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


def group_memory(own: Path = OWN, mounted: Path = MOUNTED) -> GroupMemory | None:
    """None where no control group around this process has a limit below the machine's memory."""
    total = psutil.virtual_memory().total
    groups = [
        GroupMemory(limit, used / limit, _stalled_seconds(group))
        for group, limit, used in _limited_groups(own, mounted)
        if 0 < limit < total
    ]
    return max(groups, key=lambda group: group.used_share, default=None)


def _bounds(own: Path, mounted: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each group around this process that has a limit."""
    for _, limit, used in _limited_groups(own, mounted):
        yield limit, used


def _limited_groups(own: Path, mounted: Path) -> Iterator[tuple[Group, int, int]]:
    for group in groups_around("memory", own, mounted):
        names = _NAMES[group.version]
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((group.folder / name).read_text()) for name in (names.limit, names.used))
            yield group, limit, used - _cached_bytes(group, names)


def _stalled_seconds(group: Group) -> float | None:
    """From a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds."""
    with contextlib.suppress(OSError, ValueError):
        lines = (group.folder / "memory.pressure").read_text().splitlines()
        some = next((line for line in lines if line.startswith("some ")), "")
        return int(some.rpartition("total=")[2]) / 1e6
    return None


def _cached_bytes(group: Group, names: _Names) -> int:
    fields = dict(line.split(" ", 1) for line in (group.folder / "memory.stat").read_text().splitlines())
    return int(fields.get(names.cached, 0))
