"""The wheel, installed into an environment of its own, trains a shipped recipe from an empty folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("asyncrl", "verifiers", "sandbox", "recipes", "docs")
NAME = "r1_zero_arithmetic_cpu"
TINY = (
    *("prepare.options.num_examples=512", "prepare.options.num_train=64", "prepare.options.num_heldout=16"),
    *("rollout.groups_per_batch=2", "rollout.samples_per_group=4", "rollout.max_new_tokens=16"),
    *("trainer.num_steps=2", "evaluation.every_steps=0", "serving.max_total_tokens=4096"),
    "serving.max_running_requests=32",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone, which sees the other packages of this one."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (ROOT / "pyproject.toml", ROOT / "LICENSE", *ROOT.glob("*.md"), *ROOT.glob("*.lock")):
        shutil.copy(file, source)
    pip = [sys.executable, "-m", "pip"]
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    install = ["--python", str(venv / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    # As a path in a .pth file, whose own .pth files are not read: an editable asyncrl is not seen.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return venv


def _run(environment: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(environment / "bin" / words[0]), *words[1:]],
        cwd=cwd, env=clean, capture_output=True, text=True, timeout=1000, check=False,
    )  # fmt: skip


def _files(environment: Path) -> set[str]:
    """All but compiled modules."""
    return {str(file) for file in environment.rglob("*") if "__pycache__" not in file.parts}


def test_the_environment_has_the_wheel_and_not_this_checkout(environment: Path, tmp_path: Path) -> None:
    program = "import asyncrl, verifiers; print(asyncrl.__file__, verifiers.__file__)"
    done = _run(environment, "python", "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [file.startswith(str(environment)) for file in done.stdout.split()] == [True, True]


def test_a_shipped_recipe_is_checked_listed_and_trained_from_an_empty_folder(
    environment: Path, tmp_path: Path
) -> None:
    before = _files(environment)
    done = _run(environment, "asyncrl", "check", NAME, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = _run(environment, "asyncrl", "train", cwd=tmp_path)
    assert (done.returncode, f"asyncrl train {NAME}\n" in done.stdout) == (2, True), done.stderr
    assert str(environment / "share" / "asyncrl" / "recipes") in done.stdout
    assert list(tmp_path.iterdir()) == []

    done = _run(environment, "asyncrl", "train", NAME, *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / NAME / "report.html").is_file()
    assert (tmp_path / ".cache" / "arithmetic" / "model").is_dir()
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs", ".cache"}
    assert _files(environment) == before
