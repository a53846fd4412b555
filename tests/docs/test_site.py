"""The site of docs/, built as `make docs` builds it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.recipe.keys import names

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".make" / "site.py"
HTML = ROOT / ".bench" / "site" / "html"


@pytest.mark.slow
def test_the_site_is_built_with_every_page_key_and_command_and_no_link_leads_nowhere() -> None:
    pytest.importorskip("mkdocs", reason="make setup DOCS=1")
    built = subprocess.run([sys.executable, str(SITE)], capture_output=True, text=True, check=False)
    # Strict: a link or an anchor that leads nowhere ends it.
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(HTML).with_suffix("") for path in HTML.rglob("*.html")}
    written = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert written - {Path("docs/README")} <= pages
    anchors = set(re.findall(r'id="([a-z0-9_.]+)"', reference("keys")))
    assert len(names()) > 300 and names() <= anchors
    assert 'href="keys-reference.html#rollout.interrupt"' in (HTML / "docs" / "concepts.html").read_text()
    of = runpy.run_path(str(SITE))["version"]()
    assert of in (HTML / "index.html").read_text() and of in reference("keys")
    assert "asyncrl train" in reference("commands") and "--regrade" in reference("commands")
    assert {"truncated", "dapo"} <= set(re.findall(r'id="(\w+)"', reference("algorithms")))


def reference(name: str) -> str:
    """A generated page."""
    return (HTML / "docs" / f"{name}-reference.html").read_text()


def test_the_page_of_published_runs_has_settings_and_header_of_each_recipe() -> None:
    module = runpy.run_path(str(ROOT / ".make" / "published.py"))
    page = module["page"]()
    for path in module["RECIPES"]:
        assert page.count(f"`{path.stem}`") >= 4
        assert [part for part, text in module["header"](path).items() if not text or text not in page] == []
    assert "| `simplerl_zoo_7b` | 1024 x 8 | 8,192 | 4 by batch | 5e-7 constant |" in page


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
