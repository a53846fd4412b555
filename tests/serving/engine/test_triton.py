"""A CPU server starts beside a real Triton, as `make setup TRITON=1` installs it, and has the stand-in."""

import importlib.metadata
import os
import subprocess
import sys
import urllib.request

import pytest

from asyncrl.serving.engine.environment import engine_environment

pytest.importorskip("triton", reason="make setup TRITON=1")

LOOK = "import triton, triton.language as tl; print(triton.__version__, hasattr(triton, '__file__'))"


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
def test_a_server_starts_beside_the_real_triton(shared_engine) -> None:
    url, _ = shared_engine
    with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
        assert answer.status == 200
    environment = os.environ | engine_environment(threads=1, has_gpu=False)
    process = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    # The stand-in's version, whatever is installed.
    assert process.stdout.split() == ["3.9.0", "False"]
    assert importlib.metadata.version("triton") == "3.8.0"
