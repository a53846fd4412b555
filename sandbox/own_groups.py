"""The control groups (v1 or v2) around this process, and the cores that they leave it.

Containers, Slurm and systemd bound processes by them, whatever the machine has.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OWN = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    folder: Path
    version: int
    """1 or 2: the names of the files differ."""


def groups_around(controller: str, own: Path = OWN, mounted: Path = MOUNTED) -> Iterator[Group]:
    """Groups that could bound what `controller` counts, the innermost first. None where there are none."""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names:
                yield from (Group(folder, 2) for folder in _upwards(mounted, path))
            elif controller in names.split(","):
                yield from (Group(folder, 1) for folder in _upwards(mounted / controller, path))


def available_cores(own: Path = OWN, mounted: Path = MOUNTED) -> int:
    """Cores that this process may use: those of its affinity, or as many as a control group gives time for,
    rounded down. At least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    for group in groups_around("cpu", own, mounted):
        # A group without a quota says "max" or -1, the root has no such file.
        with contextlib.suppress(OSError, ValueError):
            quota, period = _quota(group)
            if quota > 0:
                cores = min(cores, quota / period)
    return max(1, int(cores))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    # A container may see the path that its group has outside, and its own group as the root.
    folder = root / path.lstrip("/")
    yield folder
    while folder != root:
        folder = folder.parent
        yield folder


def _quota(group: Group) -> tuple[int, int]:
    """Microseconds of CPU time, and of the period in which they may be used."""
    if group.version == 2:
        quota, period = (group.folder / "cpu.max").read_text().split()
        return int(quota), int(period)
    quota, period = ((group.folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota), int(period)
