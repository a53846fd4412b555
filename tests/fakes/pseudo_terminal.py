"""A program on a real pseudo-terminal of a given size, as a person has it: what it writes, line by line."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CLEANED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables of the tester's own terminal."""


class PseudoTerminal:
    """Runs `python -c program`; context manager."""

    def __init__(self, program: str, *, columns: int, environment: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns)
        kept = {name: value for name, value in os.environ.items() if name not in CLEANED}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "TERM": "xterm-256color", "PYTHONPATH": "tests", **(environment or {})},
            start_new_session=True,
        )
        os.close(slave)
        # select() takes no descriptor above 1023, and a process of tests may hold as many.
        self._poll = select.poll()
        self._poll.register(self._master, select.POLLIN)
        self.text = ""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, words: str, *, seconds: float = 300.0) -> str:
        """All that was written so far, once `words` are among it."""
        return self._read(lambda: words in self.text, words, seconds)

    def read_all(self, *, seconds: float = 300.0) -> str:
        """What it wrote until it ended."""
        return self._read(lambda: False, "its end", seconds)

    def lines(self) -> list[str]:
        """Without what colours or moves; what was drawn over counts, as it was on the screen."""
        plain = _ESCAPE.sub("", self.text)
        return [line for each in plain.split("\n") for line in each.split("\r")]

    def _read(self, is_done: Callable[[], bool], what: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while not is_done():
            left_seconds = max(0.0, deadline - time.monotonic())
            assert self._poll.poll(1000 * left_seconds), f"{what} did not come: {self.text!r}"
            try:
                part = os.read(self._master, 65536)
            except OSError:
                # Linux says so when the last process has closed the terminal.
                part = b""
            if not part:
                break
            self.text += part.decode(errors="replace")
        return self.text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
