"""How a rank ends (what it refuses at its start: test_main.py, test_reproduce.py)."""

import json
import os
from pathlib import Path

import pytest
from fakes.template import Template

from asyncrl.errors import DiskError, Diverged
from asyncrl.wire.messages import Ending, find_ending

RANK = "from fakes.ending_ranks import *\ndef work():\n    {}\nsys.exit(run_rank(work))\n"
FULL_DISK = """
from fakes.ending_ranks import *
with contextlib.suppress(OSError):
    print('a line that finds no room', file=sys.stderr)
end_on_full_disk(DiskError('no room'))
"""
CURABLE = [
    ("raise InputError('wrong key')", 2, "wrong key", None),
    (
        "raise Diverged('lower the rate')",
        Diverged.EXIT_CODE,
        "Diverged: lower the rate",
        Ending("Diverged", "lower the rate"),
    ),
    ("raise DiskError('no room')", DiskError.EXIT_CODE, "DiskError: no room", Ending("DiskError", "no room")),
]
ALONE = "from fakes.ending_ranks import *\ndef work():\n    raise Diverged('lower the rate')\n"
ALONE += "sys.exit(run_rank(work, has_launcher=False))\n"
OURS = "raise KeyError('ours')"
Ended = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ended(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Exit code and standard error by the body of the work, and of a full disk by the file."""
    folder = tmp_path_factory.mktemp("ranks")
    bodies = [body for body, *_ in CURABLE] + [OURS]
    jobs = [(RANK.format(body), str(folder / str(number))) for number, body in enumerate(bodies)]
    jobs.append((ALONE, str(folder / "alone")))
    jobs += [(FULL_DISK, file) for file in ("/dev/full", str(folder / "room"))]
    with (folder / "codes").open("wb") as output:
        process = template.start(
            "fakes.ending_ranks", [json.dumps(jobs)], environment=dict(os.environ), output=output
        )
    assert process.wait(120) == 0, (folder / "codes").read_text()
    said = ["" if file == "/dev/full" else Path(file).read_text() for _, file in jobs]
    codes = map(int, (folder / "codes").read_text().split())
    return dict(zip([*bodies, ALONE, "/dev/full", "room"], zip(codes, said, strict=True), strict=True))


@pytest.mark.parametrize(("body", "code", "line", "ending"), CURABLE)
def test_an_error_that_the_user_can_cure_is_one_line_a_code_and_for_some_a_record(
    ended: Ended, body: str, code: int, line: str, ending: Ending | None
):
    found, said = ended[body]
    first, *rest = said.splitlines()
    assert (found, first, find_ending(said), len(rest)) == (code, line, ending, int(ending is not None))


def test_without_a_launcher_the_line_for_people_is_all(ended: Ended):
    assert ended[ALONE] == (Diverged.EXIT_CODE, "Diverged: lower the rate\n")


def test_a_fault_of_ours_keeps_its_traceback(ended: Ended):
    code, said = ended[OURS]
    assert code == 1 and said.startswith("Traceback")


def test_a_full_disk_is_told_by_the_exit_code_also_where_the_log_takes_nothing(ended: Ended):
    assert ended["/dev/full"][0] == DiskError.EXIT_CODE
    said = ended["room"][1]
    assert said.splitlines()[:2] == ["a line that finds no room", "DiskError: no room"]
    assert find_ending(said) == Ending("DiskError", "no room")
