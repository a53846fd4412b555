"""Looks at processes and kills them, although each may end at any moment: also between two of these calls."""

import contextlib
import os
import time
from collections.abc import Iterable

import psutil


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie too: it has ended, only nobody has waited for it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int | None = None) -> set[psutil.Process]:
    """What runs below the process `pid`; below this one by default."""
    try:
        below = psutil.Process(pid or os.getpid()).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process for process in below if is_alive(process)}


def children_in_order(process: psutil.Process) -> list[psutil.Process]:
    """Its children, the first started one first. Process ids wrap around, so a later child may have a smaller
    one than its parent; creation times are too coarse to tell."""
    return sorted(process.children(), key=lambda child: (child.pid < process.pid, child.pid))


def kill(process: psutil.Process) -> None:
    """SIGKILL for it if it still runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def wait_for_end(processes: Iterable[psutil.Process], *, seconds: float = 30.0) -> list[psutil.Process]:
    """Those that still run after `seconds`; returns at once when all have ended."""
    alive, deadline = [*filter(is_alive, processes)], time.monotonic() + seconds
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        alive = [*filter(is_alive, alive)]
    return alive
