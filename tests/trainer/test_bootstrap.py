"""How a rank ends (what it refuses at its start: test_main.py, test_reproduce.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import DiskError, Diverged


def run(body: str) -> subprocess.CompletedProcess[str]:
    """A process whose work is `body`."""
    code = (
        "import sys\n"
        "from asyncrl.errors import *\n"
        "from asyncrl.trainer.bootstrap import run_rank\n"
        f"def work():\n    {body}\n"
        "sys.exit(run_rank(work))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("raise InputError('wrong key')", 2, "wrong key"),
        ("raise Diverged('lower the rate')", Diverged.EXIT_CODE, "Diverged: lower the rate"),
        ("raise DiskError('no room')", DiskError.EXIT_CODE, "DiskError: no room"),
    ],
)
def test_an_error_that_the_user_can_cure_is_one_line_and_a_code(body: str, code: int, line: str):
    ended = run(body)
    assert (ended.returncode, ended.stderr.splitlines()) == (code, [line])


def test_a_fault_of_ours_keeps_its_traceback():
    ended = run("raise KeyError('ours')")
    assert ended.returncode == 1 and ended.stderr.startswith("Traceback")


def test_a_full_disk_is_told_by_the_exit_code_also_where_the_log_takes_nothing():
    code = (
        "import contextlib, sys\n"
        "from asyncrl.errors import DiskError\n"
        "from asyncrl.trainer.bootstrap import end_on_full_disk\n"
        "with contextlib.suppress(OSError):\n"
        "    print('a line that finds no room', file=sys.stderr)\n"
        "end_on_full_disk(DiskError('no room'))\n"
    )
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full).returncode == DiskError.EXIT_CODE
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stderr.splitlines() == ["a line that finds no room", "DiskError: no room"]
