"""Memory that the processes of this machine may use: all of it, or what a control group allows.

Containers, Slurm and systemd bound memory by control groups (v1 or v2). A process is killed at such a bound
however much the machine has free.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

OWN_GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """In bytes."""

    total: int
    available: int
    """What the kernel would take from caches of files included."""
    is_bounded: bool
    """Whether a control group leaves less of it than the machine."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Of the files of a control group."""

    limit: str
    used: str
    cached: str
    """Field of memory.stat: pages of files that nobody has read lately."""


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def machine_memory(own_groups: Path = OWN_GROUPS, mounted: Path = MOUNTED) -> MachineMemory:
    """Of this process. A control group without a limit, or one that cannot be read, bounds nothing."""
    machine = psutil.virtual_memory()
    bounds = list(_limits(own_groups, mounted))
    total = min([machine.total, *(limit for limit, _ in bounds)])
    left = min([machine.available, *(max(0, limit - used) for limit, used in bounds)])
    return MachineMemory(total, left, is_bounded=left < machine.available)


def _limits(own_groups: Path, mounted: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each group around this process that has a limit."""
    with contextlib.suppress(OSError):
        for line in own_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _limits_up(mounted, path, _V2)
            elif "memory" in controllers.split(","):
                yield from _limits_up(mounted / "memory", path, _V1)


def _limits_up(root: Path, path: str, names: _Names) -> Iterator[tuple[int, int]]:
    # A container may see the path that its group has outside, and its own group as the root.
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / names.limit).read_text())
            yield limit, int((folder / names.used).read_text()) - _cached_bytes(folder, names)
        if folder == root:
            return


def _cached_bytes(folder: Path, names: _Names) -> int:
    fields = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    return int(fields.get(names.cached, 0))
