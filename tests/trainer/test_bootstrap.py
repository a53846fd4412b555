"""How a rank ends (what it refuses at its start: test_main.py, test_reproduce.py)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import DiskError, Diverged

PROGRAM = """
import contextlib, json, os, sys
from asyncrl.errors import *
from asyncrl.trainer.bootstrap import end_on_full_disk, run_rank

codes = []
for code, file in json.load(sys.stdin):
    if os.fork() == 0:
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 2)
        exec(code)
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(*codes)
"""
"""Runs each code in a process of its own, whose standard error is a file; imports torch once."""
RANK = "def work():\n    {}\nsys.exit(run_rank(work))\n"
FULL_DISK = """
with contextlib.suppress(OSError):
    print('a line that finds no room', file=sys.stderr)
end_on_full_disk(DiskError('no room'))
"""
CURABLE = [
    ("raise InputError('wrong key')", 2, "wrong key"),
    ("raise Diverged('lower the rate')", Diverged.EXIT_CODE, "Diverged: lower the rate"),
    ("raise DiskError('no room')", DiskError.EXIT_CODE, "DiskError: no room"),
]
OURS = "raise KeyError('ours')"
Ended = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Exit code and standard error by the body of the work, and of a full disk by the file."""
    folder = tmp_path_factory.mktemp("ranks")
    bodies = [body for body, _, _ in CURABLE] + [OURS]
    jobs = [(RANK.format(body), str(folder / str(number))) for number, body in enumerate(bodies)]
    jobs += [(FULL_DISK, file) for file in ("/dev/full", str(folder / "room"))]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(jobs), capture_output=True, text=True, check=True
    )
    said = ["" if file == "/dev/full" else Path(file).read_text() for _, file in jobs]
    codes = map(int, done.stdout.split())
    return dict(zip([*bodies, "/dev/full", "room"], zip(codes, said, strict=True), strict=True))


@pytest.mark.parametrize(("body", "code", "line"), CURABLE)
def test_an_error_that_the_user_can_cure_is_one_line_and_a_code(
    ended: Ended, body: str, code: int, line: str
):
    found, said = ended[body]
    assert (found, said.splitlines()) == (code, [line])


def test_a_fault_of_ours_keeps_its_traceback(ended: Ended):
    code, said = ended[OURS]
    assert code == 1 and said.startswith("Traceback")


def test_a_full_disk_is_told_by_the_exit_code_also_where_the_log_takes_nothing(ended: Ended):
    assert ended["/dev/full"][0] == DiskError.EXIT_CODE
    assert ended["room"][1].splitlines() == ["a line that finds no room", "DiskError: no room"]
