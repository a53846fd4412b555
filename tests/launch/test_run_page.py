"""The page that a run serves while it trains."""

import logging
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from fakes.finished_run import write_run
from fakes.processes import descendants, wait_for_end

from asyncrl.launch.run_page import LOWER_PRIORITY, serve_page

LIMIT_SECONDS = 60.0
LAUNCHER = """
import sys, time
from pathlib import Path
from asyncrl.launch.run_page import serve_page
with serve_page(Path(sys.argv[1]), 0, log_folder=Path(sys.argv[1])) as address:
    print(address, flush=True)
    time.sleep(600)
"""


def fetch(address: str) -> bytes:
    """Waits for the page to listen."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address.split("#")[0], timeout=LIMIT_SECONDS) as reply:
                return bytes(reply.read())
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_run_serves_the_page_of_its_folder_by_a_process_of_low_priority_that_ends_with_it(
    tmp_path: Path,
) -> None:
    run, before = write_run(tmp_path), descendants()
    with serve_page(run, 0, log_folder=tmp_path) as address:
        assert address is not None and address.endswith("/#/run")
        assert b"<!doctype html>" in fetch(address)
        (page,) = descendants() - before
        assert page.nice() == min(19, psutil.Process().nice() + LOWER_PRIORITY)
    assert wait_for_end([page]) == []


def test_a_launcher_that_is_killed_takes_its_page_with_it(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(run)], stdout=subprocess.PIPE, text=True)
    with launcher:
        assert launcher.stdout is not None
        fetch(launcher.stdout.readline())
        pages = descendants(launcher.pid)
        launcher.kill()
    assert pages and wait_for_end(pages) == []


def test_a_taken_port_is_a_warning_and_the_run_has_no_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        port = taken.getsockname()[1]
        with serve_page(tmp_path / "run", port, log_folder=tmp_path) as address:
            assert address is None
    assert f"port {port} (view.port) is taken" in caplog.text


def test_a_page_that_dies_does_not_stop_its_run(tmp_path: Path) -> None:
    run, before = write_run(tmp_path), descendants()
    with serve_page(run, 0, log_folder=tmp_path) as address:
        assert address is not None
        (page,) = descendants() - before
        page.kill()
    assert wait_for_end([page]) == []


def test_without_a_port_nothing_is_started(tmp_path: Path) -> None:
    before = descendants()
    with serve_page(tmp_path / "run", None, log_folder=tmp_path) as address:
        assert address is None and descendants() == before
