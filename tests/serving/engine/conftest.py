"""What several files of real servers share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.serving.engine.environment import engine_environment

COMPARE = Path(__file__).with_name("compare.py")


@pytest.fixture(scope="session")
def compared() -> dict[str, list[list[str]]]:
    """Name of a comparison -> the words of each line that it prints."""
    environment = os.environ | engine_environment(threads=1, has_gpu=False)
    process = subprocess.run([sys.executable, COMPARE], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    found: dict[str, list[list[str]]] = {}
    for line in process.stdout.splitlines():
        name, *words = line.split()
        if words:
            list(found.values())[-1].append([name, *words])
        else:
            found[name] = []
    return found
