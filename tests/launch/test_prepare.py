"""Preparing data and base model ends with the command that asked for it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml
from fakes.processes import wait_for_end

TARGET = """
import os, time
from pathlib import Path

def make(folder, progress):
    Path({pid!r}).write_text(str(os.getpid()))
    time.sleep(1000)
"""


def test_sigterm_to_the_command_ends_what_prepares(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "slow_target.py").write_text(TARGET.format(pid=str(pid)))
    recipe = {
        "name": "t",
        "prepare": {"target": "slow_target:make", "folder": str(tmp_path / "made")},
        "model": {"path": "m"},
        "data": {"train": "d"},
        "evaluation": {"every_steps": 0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "asyncrl.cli", "train", str(tmp_path / "recipe.yaml")]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    deadline = time.monotonic() + 120
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    maker = psutil.Process(int(pid.read_text()))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    assert not wait_for_end([maker])
