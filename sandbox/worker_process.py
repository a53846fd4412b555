"""A worker process as the host that started it sees it: the line to it, and its end."""

import os
import socket
import subprocess
import tempfile

from sandbox import cgroup, leftovers
from sandbox.result import SandboxError

_SWEEP_ATTEMPTS = 500
_END_SECONDS = 10.0


class WorkerProcess:
    """A worker that has just been started and waits for its settings. `kill` ends it and all it started."""

    def __init__(self, command: tuple[str, ...]) -> None:
        """Raises SandboxError when it cannot be started."""
        self.line, theirs = socket.socketpair()
        with theirs:
            argv = [*command, str(theirs.fileno()), str(os.getpid())]
            try:
                self.process = subprocess.Popen(
                    argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            except OSError as error:
                self.line.close()
                raise SandboxError(
                    f"the sandbox's worker {command[0]!r} cannot be started: {error}"
                ) from error

    def kill(self) -> None:
        """Ends the worker: it notices the hang-up and cleans up after itself; one that does not is killed."""
        self.line.close()
        try:
            self.process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode != 0:
            # Killed: it could take nothing away, and no later worker may come.
            leftovers.sweep(tempfile.gettempdir(), cgroup.this_machine(), attempts=_SWEEP_ATTEMPTS)
