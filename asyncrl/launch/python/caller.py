"""The script or notebook that a command is started for, as the command line knows it."""

import os
import signal
import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.system.files import write_whole

VARIABLE = "ASYNCRL_CALLER"
"""Environment variable: "PID FILE", for the command alone and not for the processes that it starts."""
LOOKS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Caller:
    pid: int
    """Process without which the command stops as by Ctrl-C, however it ended; 0: it goes on."""
    refusal: Path
    """File for the sentence of what the command refuses."""

    def variable(self) -> dict[str, str]:
        """For the environment of the command."""
        return {VARIABLE: f"{self.pid} {self.refusal}"}

    def tell(self, error: InputError) -> None:
        write_whole(self.refusal, str(error))

    def watch(self) -> None:
        if self.pid:
            threading.Thread(target=self._watch, name="caller", daemon=True).start()

    def _watch(self) -> None:
        # Not the kernel's signal on a parent's death: that is of the thread that started this process.
        while os.getppid() == self.pid:
            threading.Event().wait(LOOKS_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)


def take_caller(environment: MutableMapping[str, str]) -> Caller | None:
    """The caller that the environment names, which is taken out of it."""
    if VARIABLE not in environment:
        return None
    pid, _, refusal = environment.pop(VARIABLE).partition(" ")
    return Caller(int(pid), Path(refusal))
