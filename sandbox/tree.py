"""A program's own directory, measured and removed from outside, whatever the program made of it.

Works by descriptors and without recursion: no nesting is too deep, no path too long. Follows no link. Opens
directories whose owner has closed them; the caller is that owner, or root."""

import contextlib
import os
import secrets
import stat
from dataclasses import dataclass

MAX_DEPTH = 200
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Found:
    """Contents of a directory, as far as they were counted."""

    num_bytes: int = 0
    """Allocated on the disk."""
    num_entries: int = 0
    is_too_deep: bool = False
    """Whether directories are nested more than MAX_DEPTH levels; deeper ones were not looked at."""


def open_directory(name: str, parent: int | None = None) -> int:
    """A descriptor for listing and changing a directory, which the caller closes. Raises OSError."""
    place = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    try:
        if stat.S_IMODE(os.fstat(place).st_mode) & 0o700 != 0o700:
            # By its descriptor: the name may be a link to somewhere else by now.
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=place)
    finally:
        os.close(place)


def _count(directory: int, found: Found) -> list[str]:
    """Adds the directory's entries; returns the names of its directories."""
    below = []
    with os.scandir(directory) as entries:
        for entry in entries:
            found.num_entries += 1
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                found.num_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
    return below


def measure(path: str, *, enough_bytes: int, enough_entries: int) -> Found:
    """Counts what lies below `path`; stops beyond either bound. What vanishes meanwhile does not count."""
    found = Found()
    levels: list[tuple[int, list[str]]] = []
    with contextlib.ExitStack() as stack:
        try:
            top = open_directory(path)
        except OSError:
            return found
        stack.callback(os.close, top)
        levels.append((top, _count(top, found)))
        while levels and found.num_bytes <= enough_bytes and found.num_entries <= enough_entries:
            directory, names = levels[-1]
            if not names:
                levels.pop()
                if levels:
                    os.close(directory)
                continue
            if len(levels) > MAX_DEPTH:
                found.is_too_deep = True
                names.clear()
                continue
            with contextlib.suppress(OSError):
                below = open_directory(names.pop(), directory)
                inside: list[str] = []
                levels.append((below, inside))
                inside += _count(below, found)
        for directory, _ in levels[1:]:
            os.close(directory)
    return found


def _remove_entry(name: str, levels: list[tuple[str, int, list[str]]]) -> bool:
    """Removes a file of the deepest directory, or begins with a directory; one that lies too deep is moved
    to the top: true."""
    directory, top = levels[-1][1], levels[0][1]
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        below = open_directory(name, directory)
        if len(levels) <= MAX_DEPTH:
            inside: list[str] = []
            levels.append((name, below, inside))
            inside += os.listdir(below)
            return False
        os.close(below)
        os.rename(name, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=top)
        return True
    return False


def _empty(top: int) -> bool:
    """Removes what lies below `top`. Whether something lay too deep, and was moved to the top instead."""
    moved = False
    levels = [("", top, os.listdir(top))]
    while levels:
        name, directory, names = levels[-1]
        if names:
            with contextlib.suppress(OSError):
                moved = _remove_entry(names.pop(), levels) or moved
            continue
        levels.pop()
        if levels:
            os.close(directory)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=levels[-1][1])
    return moved


def remove(path: str) -> bool:
    """Removes a directory and all below it, as far as that is possible; whether it is gone."""
    with contextlib.suppress(OSError):
        top = open_directory(path)
        try:
            while _empty(top):
                pass
        finally:
            os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return not os.path.lexists(path)
