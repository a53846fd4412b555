"""A trusted process in the jail as the worker, its parent, sees it: a socket, a pid, and its end."""

import contextlib
import os
import signal
import socket

from sandbox.frames import readable


class JailedProcess:
    """The zygote or a keeper. Between requests it says nothing: input on the socket means that it hung up."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control = control
        self.pid = pid

    def has_died(self) -> bool:
        """Whether it was killed or hung up."""
        if self.control.fileno() < 0:
            return True
        return bool(readable(self.control.fileno(), timeout_seconds=0))

    def kill(self) -> None:
        """Ends and reaps it, once: afterwards its number may be another process's."""
        if self.control.fileno() < 0:
            return
        self.control.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
