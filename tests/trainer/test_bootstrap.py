"""How a rank ends (what it refuses at its start: test_main.py, test_reproduce.py)."""

import json
import os
from pathlib import Path

import pytest
from fakes.template import Template

from asyncrl.errors import DiskError, Diverged

RANK = "from fakes.ending_ranks import *\ndef work():\n    {}\nsys.exit(run_rank(work))\n"
FULL_DISK = """
from fakes.ending_ranks import *
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
def ended(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Exit code and standard error by the body of the work, and of a full disk by the file."""
    folder = tmp_path_factory.mktemp("ranks")
    bodies = [body for body, _, _ in CURABLE] + [OURS]
    jobs = [(RANK.format(body), str(folder / str(number))) for number, body in enumerate(bodies)]
    jobs += [(FULL_DISK, file) for file in ("/dev/full", str(folder / "room"))]
    with (folder / "codes").open("wb") as output:
        process = template.start(
            "fakes.ending_ranks", [json.dumps(jobs)], environment=dict(os.environ), output=output
        )
    assert process.wait(120) == 0, (folder / "codes").read_text()
    said = ["" if file == "/dev/full" else Path(file).read_text() for _, file in jobs]
    codes = map(int, (folder / "codes").read_text().split())
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
