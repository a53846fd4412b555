"""Benchmarks are programs: `make bench`, `seeds` and `algorithms` run them, and no run of tests does."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_no_benchmark_is_collected(request: pytest.FixtureRequest) -> None:
    patterns = request.config.getini("python_files")
    files = list((ROOT / "tests" / "benchmarks").rglob("*.py"))
    assert files
    assert [f.name for f in files if any(fnmatch(f.name, pattern) for pattern in patterns)] == []


@pytest.mark.parametrize("target", ["bench", "gpu-check", "algorithms", "seeds"])
def test_what_measures_runs_from_the_folder_of_benchmarks(target: str) -> None:
    recipe = MAKEFILE.partition(f"\n{target}: setup\n")[2].partition("\n\n")[0]
    assert "tests/benchmarks/" in recipe and "pytest" not in recipe
