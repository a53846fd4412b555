"""The site of docs/, built as `make docs` builds it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".make" / "site.py"
HTML = ROOT / ".bench" / "site" / "html"


@pytest.mark.exhaustive
def test_the_site_is_built_with_every_page_key_and_command_and_no_link_leads_nowhere() -> None:
    pytest.importorskip("mkdocs", reason="make setup DOCS=1")
    built = subprocess.run([sys.executable, str(SITE)], capture_output=True, text=True, check=False)
    # Strict: a link or an anchor that leads nowhere ends it.
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(HTML).with_suffix("") for path in HTML.rglob("*.html")}
    written = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "docs").glob("*.md")}
    assert written - {Path("docs/README")} <= pages
    keys = re.findall(r"^- `([a-z_.]+)` \(", (ROOT / "docs" / "keys.md").read_text(), re.MULTILINE)
    anchors = set(re.findall(r'id="([a-z_.]+)"', (HTML / "docs" / "keys.html").read_text()))
    assert len(keys) > 300 and set(keys) <= anchors
    of = runpy.run_path(str(SITE))["version"]()
    assert all(of in (HTML / page).read_text() for page in ("index.html", "docs/keys.html"))
    commands = (HTML / "docs" / "commands.html").read_text()
    assert "asyncrl train" in commands and "--regrade" in commands


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"rev-parse": "012abc", "tag": "old\nvVERSION"}, "VERSION"),
        (
            {"rev-parse": "012abc", "tag": "vVERSION", "status": "M x"},
            "VERSION unreleased, 012abc with changes",
        ),
        ({"rev-parse": "012abc", "tag": "v0"}, "VERSION unreleased, 012abc"),
        ({}, "VERSION"),
    ],
)
def test_the_site_says_which_version_it_is_of(said: dict[str, str], version: str) -> None:
    site = runpy.run_path(str(SITE))
    own = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    answers = {word: text.replace("VERSION", own) for word, text in said.items()}
    # A function of a file that was run looks its names up there.
    site["version"].__globals__["git"] = lambda word, *_: answers.get(word, "")
    assert site["version"]() == version.replace("VERSION", own)
