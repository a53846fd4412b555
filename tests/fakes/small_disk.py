"""Disks that refuse: a tmpfs that really fills up, mounted so that nothing of it is left on the machine."""

import contextlib
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def refused_writes(*, from_bytes: int = 0) -> Iterator[None]:
    """No file of this process may grow (EFBIG) beyond `from_bytes`, as on a full disk; needs no mounts. A
    write that ends beyond it writes what fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    unwritten, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (from_bytes, hard))
    try:
        yield
    finally:
        # A module imported meanwhile would leave half of its compiled file, which no later process can read.
        sys.dont_write_bytecode = unwritten
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class MountsRefused(Exception):
    """This machine does not let us mount; the message says what it answered."""


def private_mounts() -> list[str]:
    """Words before a command that give it mounts of its own: as root, else in a user namespace.

    Raises MountsRefused where neither is allowed.
    """
    answers = []
    for words in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        try:
            tried = subprocess.run(
                [*words, "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/tmp"],
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as error:
            raise MountsRefused(str(error)) from None
        if tried.returncode == 0:
            return words
        answers.append(f"{' '.join(words)}: {tried.stderr.strip()}")
    raise MountsRefused("; ".join(answers))


class SmallDisk:
    """Mounted at `place`, to be used under `private_mounts`."""

    def __init__(self, place: Path, *, size_bytes: int) -> None:
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(place)], check=True)
        self.place = place
        self._ballast = place / ".ballast"

    def fill(self) -> None:
        """Takes every free byte; called again, what was freed since."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(descriptor, bytes(2**20))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Makes room again."""
        self._ballast.unlink()

    def unmount(self) -> None:
        """What is on it is lost once nobody has it open."""
        subprocess.run(["umount", "--lazy", str(self.place)], check=True)
