"""Starts light rollout servers (fakes/receiver.py) and speaks to them."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asyncrl.system.network import free_ports

TESTS = Path(__file__).parents[1]


@contextlib.contextmanager
def running_receivers(count: int, ports: Sequence[int] = ()) -> Iterator[list[str]]:
    """Their URLs; they listen, at `ports` if there are any."""
    ports = ports or free_ports(count)
    process = subprocess.Popen(
        [sys.executable, "-m", "fakes.receiver", *map(str, ports)],
        # Their buffers stay with them, as those of servers do (engine/environment.py).
        env=os.environ
        | {"MALLOC_TRIM_THRESHOLD_": str(2**27), "MALLOC_MMAP_THRESHOLD_": str(2**27)}
        | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
    )
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url in urls:
            _wait_until_ready(url, process)
        yield urls
    finally:
        process.terminate()
        process.wait()


def state_of(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/state", timeout=10) as reply:
        return json.load(reply)


def set_fault(url: str, **faults: int) -> None:
    body = json.dumps(faults).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/fault", body), timeout=10):
        pass


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    # However long its imports take: the limit is that of a test.
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=5):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError(f"the receivers at {url} have ended")
