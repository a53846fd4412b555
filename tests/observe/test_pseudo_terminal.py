"""What a run prints, on a real terminal of 80 and of 40 columns, and where there is none."""

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
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from rich.cells import cell_len

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
        """The text that it wrote until it ended."""
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


COLOURS = re.compile(r"\x1b\[[0-9;]*(?:3[0-9]|4[0-9]|9[0-7])[0-9;]*m")
RUN = """
import sys, time
from asyncrl.observe.terminal.live import LiveLine
from asyncrl.observe.terminal.stage import stage
from test_live import EVALUATION, row

with stage("starting 1 rollout server(s) and 1 trainer rank(s), which takes its time", 4) as bar:
    for part in range(4):
        bar.report("a part of it whose name is longer than a narrow terminal is wide", part, 4)
live = LiveLine(50)
samples = {"k": 4, "avg_at_k": 0.5, "avg_low": 0.45, "avg_high": 0.55}
samples |= {"pass_at_k": 0.8, "pass_low": 0.7, "pass_high": 0.9}
live.evaluation({**EVALUATION, "when": "before", **samples})
for step in range(1, 4):
    live.step(row(step, capped_share=0.2))
live.note("alarm capped_share: 20.0% of the tokens are at algorithm.importance_weight.cap")
print("half", flush=True)
sys.stdin.readline()
for step in range(4, 7):
    live.step(row(step))
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(["tests", "tests/observe/terminal", "."])}


@pytest.mark.parametrize("columns", [40, 80])
def test_nothing_wraps_and_the_columns_follow_the_window(columns: int) -> None:
    with PseudoTerminal(RUN, columns=columns, environment=paths()) as terminal:
        terminal.read_until("half")
        first = terminal.lines()
        assert max(map(cell_len, first)) <= columns
        assert any("alarm capped_share" in line for line in first)
        other = 120 - columns
        terminal.resize(other)
        terminal.send("\n")
        terminal.read_all()
        second = terminal.lines()[len(first) :]
        assert terminal.process.wait() == 0
    # A header for the new width, and lines under it.
    heads = [line for line in first + second if line.split()[:2] == ["step", "reward"]]
    assert len(heads) == 2 and len(heads[0]) <= columns and len(heads[1]) <= other
    assert ("idle%" in heads[0], "idle%" in heads[1]) == (columns == 80, columns == 40)
    assert max(map(cell_len, second)) <= other
    assert COLOURS.search(terminal.text)


def test_no_color_leaves_no_colour_on_a_terminal() -> None:
    with PseudoTerminal(RUN, columns=40, environment={**paths(), "NO_COLOR": "1"}) as terminal:
        terminal.read_until("half")
        terminal.send("\n")
        terminal.read_all()
    assert "6/50" in terminal.text
    assert COLOURS.search(terminal.text) is None


def piped(**environment: str) -> str:
    """What the program writes into a pipe."""
    kept = {name: value for name, value in os.environ.items() if name not in CLEANED}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=b"\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**kept, "TERM": "xterm-256color", **paths(), **environment},
        check=True,
    )
    return done.stdout.decode()


def test_without_a_terminal_there_are_plain_lines() -> None:
    text = piped()
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    assert lines[0].startswith("start   starting 1 rollout") and lines[0].endswith("takes its time")
    assert lines[1].startswith("done    starting")
    # A remark is one line, for grep.
    assert any(
        line.startswith("alarm capped_share") and line.endswith("importance_weight.cap") for line in lines
    )
    assert piped(NO_COLOR="1", FORCE_COLOR="").splitlines()[2:] == lines[2:]


def test_force_color_colours_a_pipe_and_draws_nothing_over() -> None:
    text = piped(FORCE_COLOR="1")
    assert COLOURS.search(text) and "\r" not in text
    # No movement of the cursor.
    assert not re.search(r"\x1b\[[0-9;?]*[A-HJKhl]", text)
