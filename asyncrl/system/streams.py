"""The standard streams of a command: open, and able to write any text.

A closed descriptor 1 would be given to the next file that is opened.
"""

import os
import sys


def guard_streams() -> None:
    """Opens closed standard streams on /dev/null; output and error take any text."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free descriptor is this one: those below it are open.
            os.open(os.devnull, mode)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            # A terminal or file of another encoding shows what it lacks as \xe9.
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discards output that is still to be written: Python flushes once more at exit, which would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
