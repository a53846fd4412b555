"""The README stays short and drawn as it is; pages name what there is: keys, extras, tables, pictures."""

import re
import runpy
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from asyncrl.journal.schema import TABLES, create_tables
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


MOST_ENTRIES = 26
BOOKKEEPING = {"__init__.py", "py.typed", "__pycache__"}


def entries(folder: Path) -> set[str]:
    """Names in `folder`, folders with a slash, without those that an update left with bytecode alone."""
    found = (
        entry
        for entry in folder.iterdir()
        if entry.name not in BOOKKEEPING
        and (entry.is_file() or any(file.suffix != ".pyc" for file in entry.rglob("*") if file.is_file()))
    )
    return {f"{entry.name}/" if entry.is_dir() else entry.name for entry in found}


def drawn() -> list[tuple[int, str]]:
    """Indentation and name of every entry in the drawing."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("## The tree")[2].split("```")[1]
    names = re.compile(r"(?:^|(?<=\s{2}))(\w+(?:\.py|/))(?=\s|$)")
    return [
        (len(line) - len(line.lstrip()), match[1])
        for line in block.strip("\n").splitlines()
        for match in names.finditer(line)
    ]


def test_every_entry_at_the_top_is_drawn_and_no_other() -> None:
    top = {name for indent, name in drawn() if indent == 2}
    assert top == entries(ROOT / "asyncrl")


def test_the_top_is_small_enough_for_one_look() -> None:
    assert len(entries(ROOT / "asyncrl")) <= MOST_ENTRIES


def test_rooms_of_the_trainer_are_drawn() -> None:
    below = {name for indent, name in drawn() if indent == 4}
    rooms = {name for name in entries(ROOT / "asyncrl" / "trainer") if name.endswith("/")}
    assert rooms <= below


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


JOURNAL = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", JOURNAL, re.DOTALL)


def test_the_page_names_the_tables_and_columns_of_the_schema():
    described = [
        (name, row, re.findall(r"`(\w+)`", columns))
        for name, row, columns in re.findall(r"^\| `(\w+)` \| ([^|]*) \| (.*) \|$", JOURNAL, re.MULTILINE)
    ]
    assert described == [(t.name, t.row, [*t.columns]) for t in TABLES]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_page_runs_on_an_empty_journal(query: str):
    with closing(sqlite3.connect(":memory:")) as database:
        create_tables(database)
        cursor = database.execute(query)
        assert cursor.description


def test_there_are_eleven_queries():
    assert len(QUERIES) == 11


IMAGES = ROOT / "docs" / "images"
SHELL = ROOT / "asyncrl" / "readers" / "page" / "static" / "shell.js"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".make" / "pictures.py"))


def test_each_view_of_the_page_has_a_picture(script: dict[str, Any]) -> None:
    lists = re.findall(r"^const (?:RUN|PAGE)_TABS = \[(.*?)\];", SHELL.read_text(), re.MULTILINE)
    views = {name for names in lists for name in re.findall(r'"(\w+)"', names)}
    assert len(views) > 10 and views == {picture.view() for picture in script["PAGE"]}


def test_a_command_makes_each_picture_and_a_page_shows_it(script: dict[str, Any]) -> None:
    there = {path.stem for path in IMAGES.iterdir()}
    assert there == set(script["NAMES"])
    of_page = {picture.name for picture in script["PAGE"]}
    assert shown_in("page.md") == of_page
    assert shown_in("report.md") == there - of_page - {script["LEARNING"]}
    assert f"docs/images/{script['LEARNING']}.png" in README


def shown_in(page: str) -> set[str]:
    return set(re.findall(r"\(images/([\w-]+)\.png\)", (ROOT / "docs" / page).read_text()))


def test_no_picture_is_large(script: dict[str, Any]) -> None:
    for path in IMAGES.iterdir():
        assert path.stat().st_size <= script["MOST_BYTES"], path
        with Image.open(path) as image:
            assert image.width <= 1280 and image.height <= 1100, path
