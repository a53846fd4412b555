"""The standard streams of a command: open, able to write any text, and not taken for files.

A closed descriptor 1 would be given to the next file that is opened. A full standard output would be taken
for a full disk of the run folder.
"""

import errno
import os
import sys
from typing import Any, TextIO

from asyncrl.errors import AsyncrlError


class OutputRefused(AsyncrlError):
    """Standard output or error takes nothing more, as `command > /dev/full`."""


class _Guarded:
    """A text stream whose refusals are OutputRefused; a closed pipe stays BrokenPipeError."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._refusal(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> Exception:
        if error.errno == errno.EPIPE:
            return error
        return OutputRefused(
            f"{self._name} accepts no more output: {error.strerror}. Send it elsewhere; what was "
            f"trained is kept, and the same command resumes."
        )


def guard_streams() -> None:
    """Opens closed standard streams on /dev/null, and guards output and error. Once per process."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free descriptor is this one: those below it are open.
            os.open(os.devnull, mode)
    for name, title in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, name)
        if isinstance(stream, _Guarded):
            continue
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")
        if hasattr(stream, "reconfigure"):
            # A terminal or file of another encoding shows what it lacks as \xe9.
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, _Guarded(stream, title))


def discard_output() -> None:
    """Discards output that is still to be written: Python flushes once more at exit, which would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
