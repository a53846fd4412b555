"""The wheel works without the repository: from any folder, with everything that its packages read."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("asyncrl", "verifiers", "sandbox")
SHIPPED = ("recipes", "docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an installation has them."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    # setuptools builds in the source tree: a copy keeps the checkout clean.
    source = folder / "source"
    for name in (*PACKAGES, *SHIPPED):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (ROOT / "pyproject.toml", ROOT / "LICENSE", *ROOT.glob("*.md"), *ROOT.glob("*.lock")):
        shutil.copy(file, source)
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def _run(site: Path, cwd: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = "import sys; from asyncrl.commands.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_wheel_has_every_file_of_its_packages(site: Path):
    files = [
        file.relative_to(ROOT)
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]
    assert {".html", ".css", ".js", ".md", ".typed"} <= {file.suffix for file in files}
    assert [str(file) for file in files if not (site / file).is_file()] == []


def test_the_wheel_has_every_recipe_and_every_page_of_the_docs(site: Path):
    (share,) = site.glob("*.data/data/share/asyncrl")
    files = [
        file.relative_to(ROOT)
        for name in SHIPPED
        for file in (ROOT / name).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]
    assert {".yaml", ".md", ".png", ".py", ".ipynb"} <= {file.suffix for file in files}
    others = [Path("verifiers/README.md"), *(Path(file.name) for file in ROOT.glob("*.lock"))]
    assert [str(file) for file in (*files, *others) if not (share / file).is_file()] == []


def test_each_pattern_of_data_files_names_files():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    patterns = [pattern for each in data.values() for pattern in each]
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_each_pattern_of_package_data_names_files():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    empty = [
        (package, pattern)
        for package, patterns in data.items()
        for pattern in patterns
        if not any((ROOT / package.replace(".", "/")).glob(pattern))
    ]
    assert empty == []


def test_help_and_version_answer_from_any_folder(site: Path, tmp_path: Path):
    assert "train with a recipe" in _run(site, tmp_path, "--help").stdout
    assert _run(site, tmp_path, "--version").stdout.startswith("asyncrl 0.")


def test_verify_grades_from_any_folder(site: Path, tmp_path: Path):
    row = json.dumps({"gold": "1/2", "response": "\\boxed{0.5}"})
    done = _run(site, tmp_path, "verify", "-", stdin=row)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["outcome"] == "correct"


def test_the_sandbox_runs_programs_from_any_folder(site: Path, tmp_path: Path):
    done = _run(site, tmp_path, "sandbox", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_recipe_is_checked_from_any_folder(site: Path, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nmodel: {path: nowhere}\ndata: {train: a.jsonl, heldout: b.jsonl}\n"
    )
    done = _run(site, tmp_path, "check", "mine.yaml")
    assert done.returncode == 2
    assert "nowhere" in done.stderr + done.stdout


def test_a_new_folder_is_written_and_checked_from_any_folder(site: Path, tmp_path: Path):
    done = _run(site, tmp_path, "init")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "train.jsonl").is_file()
    done = _run(site, tmp_path, "check", "recipe.yaml")
    assert done.returncode == 0, done.stderr


def test_shipped_recipes_are_found_by_their_names_from_any_folder(site: Path, tmp_path: Path):
    """The wheel's own, not those of the checkout that runs this test."""
    done = _run(site, tmp_path, "check", "r1_zero_arithmetic_cpu")
    assert done.returncode == 0, done.stderr
    assert f"run_folder: {tmp_path}/runs/" in done.stdout
    done = _run(site, tmp_path, "check", "r1_zero_aritmetic_cpu")
    assert done.returncode == 2
    assert "Did you mean r1_zero_arithmetic_cpu?\n" in done.stderr
    done = _run(site, tmp_path, "check", "nowhere.yaml")
    assert f"The ones shipped are in {site}" in done.stderr
    assert list(tmp_path.iterdir()) == []
