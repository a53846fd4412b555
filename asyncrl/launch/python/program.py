"""A command of asyncrl as a process of its own: started, followed, stopped, and how it ended as an exception.

Never spawned from the caller's module: it works in a script without `if __name__`, and in a notebook.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import AsyncrlError, InputError, RunFailed
from asyncrl.launch.stopping import INTERRUPTED
from asyncrl.system.streams import Caller

LOOKS_SECONDS = 0.2
_NUM_LAST_LINES = 20
_attached: "weakref.WeakSet[Program]" = weakref.WeakSet()
"""Programs that end with this process."""


class Program:
    def __init__(self, words: Sequence[str], output: Path, *, is_detached: bool = False) -> None:
        """Starts `asyncrl WORDS...`; what it prints goes to the end of the file `output`. Unless it is
        detached it stops as by Ctrl-C once this process is gone."""
        self.output = output
        handle, name = tempfile.mkstemp(prefix="asyncrl-", suffix=".refusal")
        os.close(handle)
        self._refusal, self._said = Path(name), ""
        caller = Caller(0 if is_detached else os.getpid(), self._refusal)
        with output.open("ab") as file:
            self._begin = self._shown = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "asyncrl.commands.main", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the caller, which asks for an orderly stop.
                start_new_session=True,
                env={**os.environ, **caller.variable(), "PYTHONUNBUFFERED": "1"},
            )
        self._owner = os.getpid()
        if not is_detached:
            _attached.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_ours(self) -> bool:
        """Whether this process started it: a fork of it cannot wait for it, and must not stop it."""
        return os.getpid() == self._owner

    def is_running(self) -> bool:
        return self._process.poll() is None

    def show_news(self) -> None:
        """Prints what the program has printed since the last call."""
        with self.output.open("rb") as file:
            file.seek(self._shown)
            news = file.read()
        self._shown += len(news)
        if news:
            sys.stdout.write(news.decode(errors="replace"))
            sys.stdout.flush()

    def interrupt(self) -> None:
        """Asks it to end as Ctrl-C does; asked again, it ends at once and leaves its step undone."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def wait(self) -> int:
        """Returns its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        self.interrupt()
        self.wait()

    def end(self, cause: str | None = None) -> None:
        """Waits for the end. Raises InputError for what the user can correct, RunFailed for a failure, with
        `cause` or the last lines that it printed; nothing after an orderly stop."""
        code = self.wait()
        if self._refusal.exists():
            self._said = self._refusal.read_text(encoding="utf-8")
            self._refusal.unlink()
        if error := self._error(code, self._said, cause):
            raise error

    def _error(self, code: int, refusal: str, cause: str | None) -> AsyncrlError | None:
        if code == 0 or code == INTERRUPTED:
            return None
        if code == 2:
            return InputError(refusal or self._last_lines())
        return RunFailed(cause or self._last_lines() or f"the process ended with exit code {code}.")

    def _last_lines(self) -> str:
        with self.output.open("rb") as file:
            file.seek(self._begin)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_NUM_LAST_LINES:])


def pause() -> None:
    """Between two looks at a program."""
    time.sleep(LOOKS_SECONDS)


@atexit.register
def _stop_attached() -> None:
    running = [program for program in _attached if program.is_ours() and program.is_running()]
    for program in running:
        print(f"stopping the run of process {program.pid}; the same call resumes it", file=sys.stderr)
        program.interrupt()
    for program in running:
        program.wait()
