"""The site of docs/, built as `make docs` builds it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HTML = ROOT / ".bench" / "site" / "html"


@pytest.mark.exhaustive
def test_the_site_is_built_with_every_page_key_and_command_and_no_link_leads_nowhere() -> None:
    pytest.importorskip("mkdocs", reason="make setup DOCS=1")
    built = subprocess.run(
        [sys.executable, str(ROOT / ".make" / "site.py")], capture_output=True, text=True, check=False
    )
    # Strict: a link or an anchor that leads nowhere ends it.
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(HTML).with_suffix("") for path in HTML.rglob("*.html")}
    written = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "docs").glob("*.md")}
    assert written - {Path("docs/README")} <= pages
    keys = re.findall(r"^- `([a-z_.]+)` \(", (ROOT / "docs" / "keys.md").read_text(), re.MULTILINE)
    anchors = set(re.findall(r'id="([a-z_.]+)"', (HTML / "docs" / "keys.html").read_text()))
    assert len(keys) > 300 and set(keys) <= anchors
    commands = (HTML / "docs" / "commands.html").read_text()
    assert "asyncrl train" in commands and "--regrade" in commands
