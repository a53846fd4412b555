"""An interpreter below a home folder, as pyenv and conda install it, in the landlock tier."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import landlock

NOBODY = 65534
SYSTEM = Path("/usr/bin/python3")
NOT_COPIED = ("site-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3", "tkinter", "ensurepip")

pytestmark = [
    pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="this kernel has no landlock to use"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can run programs as another user"),
    pytest.mark.skipif(not SYSTEM.exists(), reason="no interpreter of the system's"),
]

SCRIPT = """
import asyncio, json, os, sys
sys.path.insert(0, {source!r})
from sandbox.doctor import examine
from sandbox.command import Limits
from sandbox.pool import SandboxPool
from sandbox.result import Result, Tier
from sandbox.settings import SandboxSettings

async def main():
    python, programs = sys.argv[1], sys.argv[2:]
    more = dict(python=python) if python else dict()
    settings = SandboxSettings(workers=1, tiers=(Tier.LANDLOCK,), packages=(), **more)
    told = []
    async with SandboxPool(settings) as sandbox:
        for program in programs:
            built = await sandbox.build(program, lang="python", limits=Limits())
            result = built if isinstance(built, Result) else await sandbox.run(built)
            told.append([result.status.value, result.stdout.decode(), result.stderr.decode() + result.detail])
        note = sandbox.python_note
    _, findings, _ = await examine(settings)
    print(json.dumps([told, note, [[one.name, one.holds, one.note] for one in findings]]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home folder with an interpreter in ~/python, a secret beside it and one within; closed to others."""
    top = Path(tempfile.mkdtemp(prefix="sandbox-home-", dir="/tmp"))
    top.chmod(0o755)
    shutil.copytree(Path(__file__).parents[2] / "sandbox", top / "source" / "sandbox")
    place = top / "home"
    prefix, version = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (place / "python" / "bin").mkdir(parents=True)
    shutil.copy2(Path(sys.executable).resolve(), place / "python" / "bin" / version)
    kept = shutil.ignore_patterns(*NOT_COPIED, "config-*")
    shutil.copytree(prefix / "lib" / version, place / "python" / "lib" / version, ignore=kept)
    for library in (prefix / "lib").glob("libpython*.so*"):
        shutil.copy2(library, place / "python" / "lib")
    for secret in (place / "secret.txt", place / "python" / "secret.txt"):
        secret.write_text("the owner's own")
    place.chmod(0o700)
    yield top
    shutil.rmtree(top)


def run(home: Path, *words: str, user: int | None = None) -> tuple[list[list[str]], str, list[list[object]]]:
    """Answers of programs and of the doctor, run by the interpreter in the home folder."""
    (python,) = (home / "home" / "python" / "bin").iterdir()
    argv = [str(python), "-I", "-c", SCRIPT.format(source=str(home / "source")), *words]
    # The interpreter was moved: its library is found where it lies now.
    environment = {"LD_LIBRARY_PATH": str(home / "home" / "python" / "lib"), "HOME": str(home / "home")}
    done = subprocess.run(
        [str(part) for part in argv],
        capture_output=True,
        text=True,
        cwd="/",
        env=environment,
        timeout=300,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert done.returncode == 0, done.stderr
    told, note, findings = json.loads(done.stdout)
    return told, note, findings


def test_root_gets_the_systems_interpreter_where_its_own_is_closed_to_others(home: Path) -> None:
    told, note, findings = run(home, "", "import json, sys; print(sys.prefix)")
    assert told == [["ok", "/usr\n", ""]], told
    python = str(home / "home" / "python" / "bin")
    for said in (
        note,
        next(words for name, _, words in findings if str(name).startswith("interpreter /usr")),
    ):
        assert f"{python}/python" in said and f"for whom {home}/home is closed" in said
        assert "set `python` (an option of verifier `code`, --python of `asyncrl sandbox`)" in said


def test_an_interpreter_that_was_chosen_is_not_exchanged_but_refused_with_the_way_out(home: Path) -> None:
    link = home / "chosen"
    (python,) = (home / "home" / "python" / "bin").iterdir()
    link.symlink_to(python)
    told, _, findings = run(home, str(link), "print(1)")
    (status, stdout, detail), (tier, holds, note) = told[0], findings[0]
    assert (status, stdout, tier, holds) == ("refused", "", "tier landlock", False)
    for said in (detail, str(note)):
        assert f"{python} is out of reach for the users that programs run as" in said
        assert "set `python`" in said and "/usr/bin/python3" in said
    assert "CONFIG_LSM" not in str(note)


READS = """
import os
def tried(act):
    try:
        return act()
    except PermissionError:
        return "held"
home = {home!r}
print([tried(lambda: open(home + name).read()) for name in ("/secret.txt", "/python/secret.txt")])
print([tried(lambda: os.listdir(home + name)) for name in ("", "/python")])
import json, sqlite3, unittest, sys, subprocess, zoneinfo
child = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
print(sys.prefix, child.stdout)
"""


def test_the_owner_of_the_home_runs_programs_on_it_that_see_nothing_else_of_it(home: Path) -> None:
    place = home / "home"
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    try:
        told, note, findings = run(home, "", READS.format(home=str(place)), user=NOBODY)
    finally:
        for path in (place, *place.rglob("*")):
            os.chown(path, 0, 0)
    assert told == [["ok", f"['held', 'held']\n['held', 'held']\n{place}/python 42\n\n", ""]], told
    assert note == ""
    assert ["host files", True, ""] in findings
