"""Measures what a run holds where no cgroup bounds it: resident memory of a process tree, bytes in a
directory.

Sampled, so a run can exceed its limit for a moment; exact accounting needs a cgroup."""

import os
from pathlib import Path

_MAX_PROCESSES = 512


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (OSError, ValueError):
        pass
    return found


def _resident_bytes(pid: int) -> int:
    """Proportional share where the kernel lets us see it; else all that is resident, shared pages
    included."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def resident_bytes(root: int) -> int:
    """Memory held by `root` and all its living descendants."""
    total, pending, seen = 0, [root], 0
    while pending and seen < _MAX_PROCESSES:
        pid = pending.pop()
        total += _resident_bytes(pid)
        pending += _children(pid)
        seen += 1
    return total


def disk_bytes(directory: str, enough: int) -> int:
    """Bytes of all files below `directory`; stops counting beyond `enough`. Follows no link."""
    total, pending = 0, [directory]
    while pending and total <= enough:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total
