"""A whole run as a user starts it on a host."""

import signal
import sys
from typing import Any, Self

import psutil
from fakes.hosts import Host
from fakes.whole_run import WholeRun

ASYNCRL = (sys.executable, "-m", "asyncrl.commands.main")


class HostRun(WholeRun):
    """Everything of it is in the host's folder."""

    def __init__(
        self,
        host: Host,
        *,
        environment: dict[str, str] | None = None,
        **sections: Any,
    ) -> None:
        super().__init__(host.folder, **sections)
        self._host = host
        self._environment = environment or {}

    def start(self) -> Self:
        words = (*ASYNCRL, "train", *self.words())
        self.process = self._host.start(*words, log=self.folder / "output", **self._environment)
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        # What leads into the host does not hand signals on.
        (launcher,) = psutil.Process(self.process.pid).children()
        launcher.send_signal(number)
