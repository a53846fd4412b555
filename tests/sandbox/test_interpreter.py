"""Which Python and packages programs get, wherever the sandbox is made."""

import sys
from pathlib import Path

import pytest

from sandbox.interpreter import find_interpreter


def test_the_current_folder_is_no_part_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the json.py of the current folder')")
    for package in ("numpy", "packaging"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    find_interpreter.cache_clear()
    found = find_interpreter(sys.executable, ("numpy", "packaging"))
    assert [path for path in found.packages if Path(path).is_relative_to(tmp_path)] == []
    assert [Path(path).name for path in found.packages if path.endswith("packaging")] == ["packaging"]
