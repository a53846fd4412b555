"""The README stays short, in the order of a newcomer's questions; pages are in the index and name keys."""

import re
from pathlib import Path

import pytest

from asyncrl.readers.compare import run_comparison as comparison
from asyncrl.readers.compare.contest import Contest
from asyncrl.readers.compare.run_comparison import Point

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 1500


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_the_readme_answers_in_the_order_of_a_newcomers_questions() -> None:
    assert re.findall(r"^## (.+)$", README, re.MULTILINE) == [
        "Two commands",
        "Write a recipe",
        "Write a verifier",
        "Run it on a GPU",
        "Results",
        "What is where",
        "Where to read on",
    ]


def test_the_index_links_every_page_of_docs() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w/-]+\.md)[^)]*\)", index))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert linked == pages - {"README.md"}


def test_sections_that_links_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = []
    for page in pages:
        for path, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            target = page if not path else page.parent / path
            if section not in _anchors(target.read_text(encoding="utf-8")):
                missing.append(f"{page.name}: {path}#{section}")
    assert missing == []


def _anchors(text: str) -> set[str]:
    """Fragments that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### The JSON\n")[2].partition("\n## ")[0]
TYPES = (
    *(comparison.Comparison, comparison.GroupRow, comparison.RunRow, comparison.DifferingKey),
    *(comparison.Pair, Contest, Point),
)


@pytest.mark.parametrize("part", TYPES, ids=lambda part: part.__name__)
def test_the_page_names_the_keys(part: type) -> None:
    assert set(part.__annotations__) <= set(re.findall(r"`(\w+)`", SECTION))
