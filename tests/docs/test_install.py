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


def test_each_extra_and_each_flag_of_make_that_a_page_or_a_message_names_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    flags = set(re.findall(r"\$\(if \$\(([A-Z]+)\)", (ROOT / "Makefile").read_text()))
    places = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "Containerfile"]
    for folder in ("asyncrl", "verifiers", "sandbox", "docs", "recipes"):
        places += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".yaml", ".ipynb")]
    named_extras, named_flags = set(), set()
    for place in places:
        text = place.read_text()
        for found in re.findall(r"(?:asyncrl|\.whl)\[([a-z, ]+)\]", text):
            named_extras |= set(re.split(r"[, ]+", found))
        named_extras |= set(re.findall(r"\(extra ([a-z]+)\)", text))
        for line in re.findall(r"make setup((?: [A-Z]+=1)+)", text):
            named_flags |= set(re.findall(r"[A-Z]+", line))
    assert {"gym", "ray"} <= named_extras <= set(extras)
    assert {"GPU", "GYM", "TRACKERS"} <= named_flags <= flags
