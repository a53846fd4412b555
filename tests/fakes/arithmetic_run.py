"""A whole run of the arithmetic recipe as it is shipped, with a run folder and a layout of its own; on this
machine or on a host."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
from fakes.hosts import Host
from fakes.whole_run import WholeRun

from asyncrl.launch.prepare import prepare
from asyncrl.recipe.file import load_recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "r1_zero_arithmetic_cpu.yaml"
ASYNCRL = (sys.executable, "-m", "asyncrl.cli")


class ArithmeticRun(WholeRun):
    """Makes data and base model first, in the repository, where it takes two minutes once."""

    def __init__(self, folder: Path, *overrides: str, host: Host | None = None, **environment: str) -> None:
        self.folder, self.run_folder = folder, folder / "run"
        self._command = [*ASYNCRL, "train", str(RECIPE), *overrides, f"run_folder={self.run_folder}"]
        self._environment = environment
        self._host = host
        self.process = None
        prepare(load_recipe(RECIPE), RECIPE, [])

    def start(self, *overrides: str) -> "ArithmeticRun":
        words, log = [*self._command, *overrides], self.folder / "output"
        if self._host is not None:
            self.process = self._host.start(*words, log=log, **self._environment)
            return self
        with log.open("a") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._host is None:
            return super().kill(number)
        assert self.process is not None
        (launcher,) = psutil.Process(self.process.pid).children()
        launcher.send_signal(number)
