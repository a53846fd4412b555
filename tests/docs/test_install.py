"""docs/install.md names the extras of the package and the lock file of each."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_each_extra_with_the_lock_file_that_the_wheel_ships() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*-r (\w+\.lock)` \|$", page, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(rows) == set(extras) - {"dev"}
    assert [lock for lock in (*rows.values(), "cpu.lock", "gpu.lock") if not (ROOT / lock).is_file()] == []
