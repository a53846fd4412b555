"""The Slurm scripts of docs/gpus.md, with stand-ins for Slurm's programs and for the run."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"
ALONE, ON_NODES = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
STOPPED = """
import json, os, pathlib, signal, sys
def stop(*_):
    pathlib.Path("stopped").write_text(str(os.getpid()))
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("runs/one").mkdir(parents=True, exist_ok=True)
pathlib.Path("runs/one/status.json").write_text(json.dumps({"pid": os.getpid()}))
pathlib.Path("began").write_text(str(os.getpid()))
while True:
    signal.pause()
"""
"""A run: it says which process it is and waits for SIGTERM."""


class Job:
    """A batch script in a folder with stand-ins on its path."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        (folder / "job.sh").write_text(script)
        subprocess.run(["bash", "-n", folder / "job.sh"], check=True)
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").touch()
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)
        self.stand_in("scontrol", '[ "$3" = "n[1-4]" ] && echo n1 && echo n2')

    def stand_in(self, name: str, shell: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{shell}\n")
        path.chmod(0o755)

    def stand_in_for_the_run(self, name: str) -> None:
        (self.folder / "run.py").write_text(STOPPED)
        self.stand_in(name, f"exec {sys.executable} {self.folder}/run.py")

    def start(self) -> "subprocess.Popen[bytes]":
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        slurm = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NNODES": "4", "PATH": path}
        return subprocess.Popen(
            ["bash", "-eu", "job.sh"],
            cwd=self.folder,
            env={**os.environ, **slurm},
            # Slurm signals the batch shell alone.
            start_new_session=True,
        )

    def wait_for(self, name: str, shell: "subprocess.Popen[bytes]") -> int:
        path = self.folder / name
        deadline = time.monotonic() + 300
        while not (path.exists() and path.read_text()):
            assert shell.poll() is None and time.monotonic() < deadline, f"no {name}"
            time.sleep(0.02)
        return int(path.read_text())


def test_the_slurm_script_starts_ray_on_every_node_and_the_run_on_the_first(tmp_path: Path) -> None:
    job = Job(tmp_path, ON_NODES)
    job.stand_in("srun", f'echo "$@" >> {tmp_path}/calls')
    assert job.start().wait(60) == 0
    assert (tmp_path / "calls").read_text() == (
        "--no-kill --cpu-bind=none "
        "ray symmetric-run --address n1:6379 --min-nodes 4 --disable-usage-stats -- "
        "asyncrl train recipe.yaml cluster.backend=ray cluster.address=n1:6379 run_folder=runs/one\n"
    )


@pytest.mark.parametrize(
    ("script", "program", "number"),
    [
        pytest.param(ALONE, "asyncrl", signal.SIGTERM, id="one node"),
        pytest.param(ON_NODES, "srun", signal.SIGUSR1, id="several nodes"),
    ],
)
def test_the_signal_before_the_time_limit_stops_the_run_and_the_job_ends_with_its_code(
    tmp_path: Path, script: str, program: str, number: signal.Signals
) -> None:
    name = number.name.removeprefix("SIG")
    assert f"--signal=B:{name}@300" in script
    job = Job(tmp_path, script)
    job.stand_in_for_the_run(program)
    shell = job.start()
    try:
        run = job.wait_for("began", shell)
        shell.send_signal(number)
        assert shell.wait(60) == 130
    finally:
        shell.kill()
    assert (tmp_path / "stopped").read_text() == str(run)
