"""Control groups (v1 or v2): those that bound the memory and the processes of one worker's runs together, and
those around this process, with the cores that they leave it.

A worker's groups are optional: only root, or an owner of a delegated group, may create them. Owns one
directory per hierarchy, named after the worker's pid, so that a later worker can remove what a killed worker
left. Containers, Slurm and systemd bound processes by groups around them, whatever the machine has."""

import contextlib
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "asyncrl-sandbox-"
_OVERHEAD_BYTES = 96 << 20
"""The zygote, the inits and a judge, in addition to the program."""
_OVERHEAD_PROCESSES = 6
_CLOSE_PAUSE_SECONDS = 0.01
_CLOSE_ATTEMPTS = 500


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup tree that holds a controller."""

    controllers: frozenset[str]
    """The subset of "memory" and "pids" that it holds."""
    version: int
    home: Path
    """The directory below which new groups are made; the caller's own group or, in v2, an ancestor of it."""


def _own_paths(text: str) -> dict[str, str]:
    """Controller name ("" for v2) -> path, from /proc/self/cgroup."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in lines for name in names.split(",")}


def _directory(mount_point: str, mount_root: str, path: str) -> Path:
    below = path[len(mount_root) :] if mount_root != "/" and path.startswith(mount_root) else path
    directory = Path(mount_point) / below.strip("/")
    return directory if directory.is_dir() else Path(mount_point)


def _home_v2(directory: Path, top: Path) -> Path | None:
    # A group with processes in it cannot hand controllers to children: look upwards for one
    # that already does.
    while True:
        enabled = (directory / "cgroup.subtree_control").read_text().split()
        if "memory" in enabled and "pids" in enabled and os.access(directory, os.W_OK):
            return directory
        if directory == top:
            return None
        directory = directory.parent


def find_hierarchies(mountinfo: str, own: str) -> list[Hierarchy]:
    """Where groups with the memory and pids controllers can be made; empty when nowhere."""
    paths = _own_paths(own)
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ")[:3]
        mount_root, mount_point = before.split(" ")[3:5]
        if kind == "cgroup":
            names = frozenset(options.split(",")) & {"memory", "pids"}
            if names:
                home = _directory(mount_point, mount_root, paths.get(min(names), "/"))
                if os.access(home, os.W_OK):
                    found.append(Hierarchy(names, 1, home))
        elif kind == "cgroup2":
            with contextlib.suppress(OSError):
                upper = _home_v2(_directory(mount_point, mount_root, paths.get("", "/")), Path(mount_point))
                if upper is not None:
                    found.append(Hierarchy(frozenset({"memory", "pids"}), 2, upper))
    return found


def this_machine() -> list[Hierarchy]:
    """find_hierarchies for the running process."""
    try:
        mountinfo, own = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    except OSError:
        return []
    return find_hierarchies(mountinfo, own)


def is_alive(pid: str) -> bool:
    """Whether a process of this number runs."""
    try:
        # The state follows the name, which may hold anything but is in parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


class Cgroup:
    """The groups of one worker. Bounds exist from the first run on; `close` when no
    process is left inside."""

    def __init__(self, hierarchies: list[Hierarchy], pid: int) -> None:
        self._members: list[tuple[Hierarchy, Path]] = []
        self._bounds = (0, 0)
        for hierarchy in hierarchies:
            directory = hierarchy.home / f"{PREFIX}{pid}"
            with contextlib.suppress(OSError):
                directory.mkdir(exist_ok=True)
                self._members.append((hierarchy, directory))
        self._controlled = {name for hierarchy, _ in self._members for name in hierarchy.controllers}
        self._events = self._open_events()

    def controls(self, controller: str) -> bool:
        """Whether "memory" or "pids" is bounded by these groups."""
        return controller in self._controlled

    def join(self) -> None:
        """Moves the calling process in; its children follow."""
        for _, directory in self._members:
            (directory / "cgroup.procs").write_text(str(os.getpid()))

    def bound(self, memory_bytes: int, processes: int) -> None:
        """Sets the bounds for the next run, where they differ from the last one's."""
        if (memory_bytes, processes) == self._bounds:
            return
        for hierarchy, directory in self._members:
            if "pids" in hierarchy.controllers:
                (directory / "pids.max").write_text(str(processes + _OVERHEAD_PROCESSES))
            if "memory" in hierarchy.controllers:
                self._bound_memory(hierarchy, directory, str(memory_bytes + _OVERHEAD_BYTES))
        self._bounds = (memory_bytes, processes)

    @staticmethod
    def _bound_memory(hierarchy: Hierarchy, directory: Path, value: str) -> None:
        if hierarchy.version == 2:
            (directory / "memory.max").write_text(value)
            swap = directory / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            return
        limit, with_swap = directory / "memory.limit_in_bytes", directory / "memory.memsw.limit_in_bytes"
        # Memory may never exceed memory plus swap: lift the second before the first grows, lower it after.
        if with_swap.exists():
            with_swap.write_text("-1")
        limit.write_text(value)
        if with_swap.exists():
            with_swap.write_text(value)

    def num_oom_kills(self) -> int:
        """How often the kernel has killed a process here for want of memory."""
        if self._events is None:
            return 0
        for line in os.pread(self._events, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def _open_events(self) -> int | None:
        # Kept open: it is read twice per run.
        for hierarchy, directory in self._members:
            if "memory" in hierarchy.controllers:
                name = "memory.events" if hierarchy.version == 2 else "memory.oom_control"
                with contextlib.suppress(OSError):
                    return os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
        return None

    def close(self) -> None:
        """Removes the groups; the kernel refuses for a moment after the last process has ended, on a busy
        machine for more than a second. What is left after 5 s the next worker takes away."""
        if self._events is not None:
            os.close(self._events)
            self._events = None
        for _, directory in self._members:
            for _ in range(_CLOSE_ATTEMPTS):
                try:
                    directory.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    select.select([], [], [], _CLOSE_PAUSE_SECONDS)
        self._members = []


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
        for name, path in _own_paths(own.read_text()).items():
            # A container may see the path that its group has outside, and its own group as the root.
            if name in ("", controller):
                root = mounted / name
                folder = root / path.lstrip("/")
                around = (each for each in (folder, *folder.parents) if each.is_relative_to(root))
                yield from (Group(each, 1 if name else 2) for each in around)


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


def _quota(group: Group) -> tuple[int, int]:
    """Microseconds of CPU time, and of the period in which they may be used."""
    if group.version == 2:
        quota, period = (group.folder / "cpu.max").read_text().split()
        return int(quota), int(period)
    quota, period = ((group.folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota), int(period)
