"""Control groups (v1 or v2) that bound the memory and the processes of one worker's runs together.

Optional: only root, or an owner of a delegated group, may create them. Owns one directory per hierarchy,
named after the worker's pid, so that a later worker can remove what a killed worker left."""

import contextlib
import os
import select
from dataclasses import dataclass
from pathlib import Path

from sandbox import strays

_PREFIX = "asyncrl-sandbox-"
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
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


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


def _end_processes(directory: Path) -> None:
    ours = os.readlink("/proc/self/ns/pid")
    for pid in (directory / "cgroup.procs").read_text().split():
        # Those of another pid namespace end with its init; or are another container's, whose worker this
        # process cannot see.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == ours:
                strays.end(int(pid))


def sweep(hierarchies: list[Hierarchy]) -> bool:
    """Removes the groups of workers that are gone, and ends what still runs in them.

    Whether none is left: the kernel keeps a group for a moment after its last process."""
    left = False
    for hierarchy in hierarchies:
        for directory in hierarchy.home.glob(f"{_PREFIX}*"):
            if is_alive(directory.name.removeprefix(_PREFIX)):
                continue
            with contextlib.suppress(OSError):
                _end_processes(directory)
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left = True
    return not left


class Cgroup:
    """The groups of one worker. Bounds exist from the first run on; `close` when no
    process is left inside."""

    def __init__(self, hierarchies: list[Hierarchy], pid: int) -> None:
        self._members: list[tuple[Hierarchy, Path]] = []
        self._bounds = (0, 0)
        for hierarchy in hierarchies:
            directory = hierarchy.home / f"{_PREFIX}{pid}"
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
