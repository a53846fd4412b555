"""`make setup` after one that was interrupted: nothing that lacks files is taken for installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTES = """#!/bin/sh
echo "$(basename $0) $*" >> calls
"""
"""A program that only notes how it is called."""
VENV = """
case "$*" in "-m venv .venv") mkdir -p .venv/bin && cp python3 .venv/bin/python;; esac
"""
FAILS = """
case "$*" in *"$(cat broken)"*) exit 1;; esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile and its lock files, beside programs in place of Python and uv."""
    for file in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("*.lock")):
        shutil.copy(file, tmp_path)
    for name, more in (("python3", VENV), ("uv", FAILS)):
        (tmp_path / name).write_text(NOTES + more)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def setup(project: Path, *words: str, broken: str = "nothing") -> list[str]:
    """The calls of a set-up, which is cut off at the call that has the words `broken`."""
    (project / "broken").write_text(broken)
    (project / "calls").write_text("")
    make = ["make", "setup", "PYTHON=./python3", "UV=./uv", *words]
    done = subprocess.run(make, cwd=project, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) == (broken == "nothing"), done.stderr
    return (project / "calls").read_text().splitlines()


def is_made(calls: list[str]) -> bool:
    return "python3 -m venv .venv" in calls


def test_an_environment_is_made_again_after_a_set_up_that_was_cut_off(project: Path) -> None:
    assert is_made(setup(project, broken="-r cpu.lock"))
    (project / ".venv" / "half_a_package").mkdir()
    assert is_made(setup(project))
    assert not (project / ".venv" / "half_a_package").exists() and (project / ".venv" / ".ready").exists()


def test_an_environment_that_is_whole_is_kept_when_the_lock_file_changes(project: Path) -> None:
    setup(project)
    (project / ".venv" / ".ready").unlink()
    calls = setup(project)
    assert not is_made(calls) and any("-r cpu.lock" in call for call in calls)
    assert setup(project) == []


def test_packages_of_an_extra_are_installed_again_after_a_set_up_that_was_cut_off(project: Path) -> None:
    setup(project, "GYM=1", broken="-r gym.lock")
    (again,) = (call for call in setup(project, "GYM=1") if "-r gym.lock" in call)
    assert "--force-reinstall" in again
    assert setup(project, "GYM=1") == []
    (first,) = (call for call in setup(project, "RAY=1") if "-r ray.lock" in call)
    assert "--force-reinstall" not in first
