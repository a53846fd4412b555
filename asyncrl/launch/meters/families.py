"""The processes below this one, told apart by which child of it they descend from."""

import contextlib

import psutil


def find_families() -> dict[psutil.Process, list[psutil.Process]]:
    """Child of this process -> it and its descendants that live.

    Reads every process of the machine once, which takes long where there are many: not for an event loop.
    """
    own = psutil.Process()
    families: dict[psutil.Process, list[psutil.Process]] = {}
    firsts: dict[int, psutil.Process] = {}
    # Parents come before their children.
    for process in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            parent = process.ppid()
            first = process if parent == own.pid else firsts.get(parent)
            # Its parent has ended since it was found: it belongs to none of them any more.
            if first is not None:
                firsts[process.pid] = first
                families.setdefault(first, []).append(process)
    return families
