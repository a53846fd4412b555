"""Measures what a run holds where no cgroup and no private disk bounds it: memory, processes, CPU time, and
files that are open or mapped and have no name any more.

Sampled, so a run can exceed a limit for a moment. What cannot be seen is counted at its largest: a socket's
or pipe's buffer is full; a process that hides its descriptors is reported as such."""

import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PIPE_BYTES = 1 << 16
_EXITING, _FORKED_WITHOUT_EXEC = 0x04, 0x40
_DELETED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+) (\d+) +(/.*) \(deleted\)$", re.MULTILINE)


def _socket_bytes() -> int:
    """Bytes that one end of a socket can keep; seccomp leaves it at the machine's default."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    except OSError:
        return 212992


_SOCKET_BYTES = _socket_bytes()


class CpuTimes:
    """CPU time of a run's processes as far as they were seen, also of those that are gone."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def see(self, pid: int, started: int, seconds: float) -> None:
        """Notes what one process, which began at clock tick `started`, has used by itself."""
        self._seconds[pid, started] = seconds

    @property
    def seconds(self) -> float:
        """All together."""
        return sum(self._seconds.values())


@dataclass
class Sample:
    """Resources that the processes below a box's init hold now."""

    num_tasks: int = 0
    """Processes and threads."""
    memory_bytes: int = 0
    """Resident memory, shared pages by share; buffers of sockets and pipes as if they were full."""
    unnamed_bytes: int = 0
    """Files that were removed and are still open or mapped."""
    hidden: set[int] = field(default_factory=set)
    """Processes whose descriptors cannot be seen."""


def children(pid: int) -> list[int]:
    """Its living child processes."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (OSError, ValueError):
        pass
    return found


@dataclass(frozen=True)
class _Process:
    pid: int
    state: str
    flags: int
    cpu_seconds: float
    num_threads: int
    started: int
    """In clock ticks."""


def _status(pid: int) -> _Process | None:
    """Status in /proc/PID/stat; None if the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        return _Process(pid, fields[0].decode(), int(fields[6]), seconds, int(fields[17]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far; 0 when it is gone."""
    process = _status(pid)
    return process.cpu_seconds if process else 0.0


def resident_bytes(pid: int) -> int:
    """All that is resident, pages that it shares with others included."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _proportional_bytes(pid: int) -> int:
    """Resident memory, shared pages by share, where the kernel tells; a busy process makes that slow."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return resident_bytes(pid)


def _add_memory(pids: list[int], enough: int, until: float, sample: Sample) -> None:
    """Adds the memory of processes; shared pages by share only where it were more than `enough` otherwise."""
    resident = sum(map(resident_bytes, pids))
    if sample.memory_bytes + resident <= enough:
        sample.memory_bytes += resident
        return
    for pid in pids:
        if time.monotonic() > until or sample.memory_bytes > enough:
            return
        sample.memory_bytes += _proportional_bytes(pid)


def _add_descriptors(pid: int, sample: Sample, seen: set[tuple[int, int]]) -> None:
    """Adds the files without a name and the buffers behind a process's descriptors."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        sample.hidden.add(pid)
        return
    except OSError:
        return
    for number in numbers:
        try:
            found = os.stat(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            sample.unnamed_bytes += found.st_blocks * 512
        elif stat.S_ISSOCK(found.st_mode):
            sample.memory_bytes += _SOCKET_BYTES
        elif stat.S_ISFIFO(found.st_mode):
            sample.memory_bytes += _PIPE_BYTES


def _add_mapped(pid: int, directory: bytes, sample: Sample, seen: set[tuple[int, int]]) -> None:
    """Adds removed files of `directory` that only a mapping keeps, by the size of the mapping."""
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return
    for start, end, device, inode, path in _DELETED.findall(text):
        major, _, minor = device.partition(b":")
        key = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        if path.startswith(directory) and key not in seen:
            seen.add(key)
            sample.unnamed_bytes += int(end, 16) - int(start, 16)


def look(
    root: int,
    cpu: CpuTimes,
    *,
    enough_tasks: int,
    seconds: float,
    enough_memory: int | None,
    directory: str | None,
) -> Sample:
    """A sample of all living descendants of `root`; of more than `enough_tasks`, only that they are more, and
    so of more bytes than `enough_memory`.

    Without `enough_memory` no memory is measured, without a `directory` (the run's own, on a disk that
    nothing bounds) no files. What cannot be seen within `seconds`, because the kernel lets the caller wait
    for busy processes, is left out."""
    until = time.monotonic() + seconds
    sample, pending, seen = Sample(), children(root), set[tuple[int, int]]()
    first = pending[0] if pending else 0
    inside: list[int] = []
    unseen: set[int] = set()
    while pending:
        process = _status(pending.pop())
        if process is None:
            continue
        cpu.see(process.pid, process.started, process.cpu_seconds)
        pending += children(process.pid)
        if process.state in "ZX":
            continue
        inside.append(process.pid)
        if process.pid == first and process.flags & _FORKED_WITHOUT_EXEC:
            # Our own code until it becomes the program, and hidden as the zygote is.
            unseen.add(first)
        if process.flags & _EXITING and process.num_threads <= 1:
            # It has given up its memory and runs no code; until it is a zombie, which a busy machine
            # delays, the kernel shows its descriptors to root alone.
            unseen.add(process.pid)
        sample.num_tasks += process.num_threads
        if sample.num_tasks > enough_tasks:
            return sample
    if enough_memory is not None or directory is not None:
        for pid in inside:
            _add_descriptors(pid, sample, seen)
        sample.hidden -= unseen
    if enough_memory is not None:
        _add_memory(inside, enough_memory, until, sample)
    if directory is not None:
        for pid in inside:
            if time.monotonic() > until:
                break
            _add_mapped(pid, os.fsencode(directory), sample, seen)
    return sample


def user_tasks(user: int) -> int:
    """Processes and threads of a user on this machine: what RLIMIT_NPROC is compared with."""
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    process = _status(int(entry.name))
                    total += process.num_threads if process else 0
            except OSError:
                continue
    return total
